"""The contract that every clipping keeps, and the formulas of full and automatic clipping."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import tfdpbc as dp
from tests.clipping import kinds
from tfdpbc import clipping
from tfdpbc.clipping import AutomaticClipping, FullGradientClipping
from tfdpbc.clipping.schedule import LARGEST, SMALLEST

WIDE = st.floats(width=32, min_value=0) | st.just(float("nan")) | st.sampled_from([0.0, 1e-30, 1e30, float("inf")])
ESTIMATES = st.floats(width=32) | st.sampled_from([0.0, -1.0, 1e-30, 1e30, float("inf"), float("nan")])


def test_every_clipping_is_covered_by_the_contract():
    assert {type(c) for c in kinds.CLIPPINGS} == set(clipping.by_name.values())


def groups_of(kind, state):
    """Blocks that share a bound on the norm of the whole, by an independent reading of the class: a list of index lists."""
    if isinstance(kind, dp.GroupedClipping):
        number = kind.groups if kind.groups is not None else np.asarray(state["state"]["groups"])
        return [[j for j in range(3) if number[j] == g] for g in sorted(set(number))]
    return [[j] for j in range(kind.num_blocks())]


def moved(kind, bounds, state, one, other):
    """How far the weighted contribution `one` lies from `other` pointing against it, in units of the bounds: per unit that
    is noised for its own sensitivity (block, group, or the scaled whole)."""
    parts = np.float64(one) / bounds, np.float64(other) / bounds
    if isinstance(kind, dp.ScaledClipping):
        return [sum(np.linalg.norm(p) for p in parts)]
    return [sum(np.linalg.norm(p[group]) for p in parts) for group in groups_of(kind, state)]


@pytest.mark.parametrize("kind", kinds.CLIPPINGS, ids=kinds.IDS)
class TestContract:
    """What the engines and the plan rely on, for each clipping."""

    @given(data=st.data(), round_index=st.integers(0, 40))
    def test_sensitivity_whatever_comes(self, kind, data, round_index):
        """Weights keep every noised unit within its bound, so one changed contribution moves it by at most 2 bounds (pitfall
        3), for any norms and any estimates."""
        length = kind.num_blocks()
        norms = data.draw(arrays(np.float32, (5, length), elements=WIDE))
        estimates = data.draw(arrays(np.float32, length, elements=ESTIMATES))
        state = kinds.given(kind, estimates)
        bounds = kinds.bounds_of(kind, round_index, **state)
        assert bounds.shape == (length,)
        assert np.isfinite(bounds).all() and (bounds > 0).all()
        weights = kind(norms, bounds, **state).numpy()
        finite = np.isfinite(norms).all(axis=1)
        assert weights.shape == norms.shape
        assert (weights[~finite] == 0).all() and np.isfinite(weights).all() and (weights >= 0).all()
        if not isinstance(kind, AutomaticClipping):
            assert (weights <= 1).all()
        carried = np.where(finite[:, None], weights * np.where(finite[:, None], norms, 0), 0)
        assert (carried <= bounds * (1 + 1e-5)).all()
        for one in carried:
            for other in carried:
                assert max(moved(kind, bounds, state, one, other)) <= 2 * (1 + 1e-5)
        # As many units as the plan composes, so that noise σ f bounds[j] gives √units/σ.
        assert len(moved(kind, bounds, state, carried[0], carried[0])) == kind.composed_blocks()

    def test_small_contributions_keep_their_direction(self, kind):
        state = kinds.given(kind)
        bounds = kinds.bounds_of(kind, **state)
        norms = np.full((2, len(bounds)), 0.1, np.float32) * bounds
        weights = kind(norms, bounds, **state).numpy()
        if not isinstance(kind, AutomaticClipping):
            np.testing.assert_array_equal(weights, np.ones_like(norms))

    def test_bounds_in_a_graph_are_those_in_python(self, kind):
        state = kinds.given(kind)
        for round_index in (0, 6, 7, 39):
            in_graph = tf.function(lambda r, kind=kind: kind.bounds(r, 7, **state))(tf.constant(round_index, tf.int64))
            np.testing.assert_allclose(in_graph, kinds.bounds_of(kind, round_index, **state), rtol=1e-5)

    def test_no_bound_falls_below_the_smallest_one(self, kind):
        state = kinds.given(kind, [1e-20, 1.0, 1e9][: kind.num_blocks()])
        least = min(kinds.bounds_of(kind, r, **state).min() for r in range(42))
        assert least >= kind.smallest_bound(42, 7) * (1 - 1e-5)

    def test_round_trips(self, kind):
        assert clipping.from_config(json.loads(json.dumps(kind.to_config()))) == kind
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(kind))
        assert again == kind and hash(again) == hash(kind)
        plan = dp.PrivacyPlan(dp.Shuffling(24, 6, 1), kind, 1.0, 2)
        assert dp.PrivacyPlan.from_config(json.loads(json.dumps(plan.to_config()))) == plan

    def test_public_fields_are_frozen(self, kind):
        assert set(kind.fields()) == set(kind.public)
        for field in kind.fields():
            with pytest.raises(AttributeError):
                setattr(kind, field, 0.123)

    def test_the_state_keeps_its_shapes(self, kind):
        if not kind.adaptive:
            assert kinds.given(kind) == {}
            return
        state = kinds.given(kind)["state"]
        length, measured = kind.num_blocks(), kind.measured()
        released = clipping.base.Released(
            tf.constant(6),
            7,
            kind.bounds(6, 7, state),
            *(tf.ones([length]),) * 3,
            tf.fill([measured], 0.5),
            0.1,
            4,
        )
        after = kind.update(state, released)
        assert {n: (np.shape(v), np.asarray(v).dtype) for n, v in after.items()} == {
            n: (np.shape(v), np.asarray(v).dtype) for n, v in state.items()
        }


def test_full_clipping_is_the_formula_of_algorithm_1():
    norms = np.array([[0.0], [1.0], [2.0], [8.0], [np.inf], [np.nan]], np.float32)
    weights = FullGradientClipping(2.0)(norms, np.array([2.0], np.float32)).numpy()[:, 0]
    np.testing.assert_allclose(weights, [1, 1, 1, 0.25, 0, 0])


def test_automatic_clipping_is_the_formula_of_auto_s():
    norms = np.array([[0.0], [1.0], [3.0], [1e30], [np.inf], [np.nan]], np.float32)
    weights = AutomaticClipping(2.0, stability=0.5)(norms, np.array([2.0], np.float32)).numpy()[:, 0]
    np.testing.assert_allclose(weights, [4, 2 / 1.5, 2 / 3.5, 2e-30, 0, 0], rtol=1e-6)


def test_decay_per_epoch_and_per_round():
    by_epoch, by_round = FullGradientClipping(1.0, 0.9), FullGradientClipping(1.0, 0.9, "round")
    assert [by_epoch.bounds(r, 3)[0] for r in range(7)] == pytest.approx([1, 1, 1, 0.9, 0.9, 0.9, 0.81])
    assert [by_round.bounds(r, 3)[0] for r in range(4)] == pytest.approx([1, 0.9, 0.81, 0.729])


def test_schedules_of_the_user():
    per_epoch = FullGradientClipping(kinds.SCHEDULE, decay=0.5)
    want = [1.5, 0.75, 0.375, 0.1875, 0.25 / 16]
    assert [per_epoch.bounds(3 * e, 3)[0] for e in range(5)] == pytest.approx(want)
    per_round = FullGradientClipping(kinds.halving, decay_every="round")
    assert [per_round.bounds(r, 3)[0] for r in range(3)] == pytest.approx([0.8, 0.4, 0.8 / 3])


@keras.saving.register_keras_serializable("tfdpbc-tests")
def wild(step):
    return tf.gather(tf.constant([1.0, np.nan, -1.0, 0.0, np.inf, 1e30]), tf.cast(step, tf.int32))


def test_a_schedule_that_goes_wild_stays_in_bounds():
    kind = FullGradientClipping(wild, decay_every="round")
    want = [1.0, SMALLEST, SMALLEST, SMALLEST, LARGEST, LARGEST]
    assert [kind.bounds(r, 3)[0] for r in range(6)] == pytest.approx(want)
    in_graph = tf.function(lambda r: kind.bounds(r, 3))
    assert [float(in_graph(tf.constant(r))[0]) for r in range(6)] == pytest.approx(want)


@pytest.mark.parametrize(
    "arguments, name",
    [
        ({"norm": 0.0}, "norm"),
        ({"norm": -1.0}, "norm"),
        ({"norm": float("nan")}, "norm"),
        ({"norm": float("inf")}, "norm"),
        ({"norm": "1"}, "norm"),
        ({"norm": lambda step: 1.0}, "norm"),
        ({"norm": 1.0, "decay": 0.0}, "decay"),
        ({"norm": 1.0, "decay": 1.1}, "decay"),
        ({"norm": 1.0, "decay_every": "step"}, "decay_every"),
    ],
)
def test_bad_arguments_are_named(arguments, name):
    with pytest.raises((ValueError, TypeError), match=f"^{name} must be .*; got {name}="):
        FullGradientClipping(**arguments)


@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: dp.LayerwiseClipping(0.0), "master_norm"),
        (lambda: dp.LayerwiseClipping(1.0, num_blocks=0), "num_blocks"),
        (lambda: dp.LayerwiseClipping(1.0, estimates="guessed"), "estimates"),
        (lambda: dp.LayerwiseClipping(1.0, estimates=3), "estimates"),
        (lambda: dp.LayerwiseClipping(1.0, floor=0.0), "floor"),
        (lambda: dp.LayerwiseClipping(1.0, estimates="private"), "noise_multiplier"),
        (lambda: dp.GroupedClipping(1.0), "num_groups"),
        (lambda: dp.GroupedClipping(1.0, num_groups=0), "num_groups"),
        (lambda: dp.GroupedClipping(1.0, num_groups=4, num_blocks=3), "num_groups"),
        (lambda: dp.GroupedClipping(1.0, groups=(0, 2)), "groups"),
        (lambda: dp.GroupedClipping(1.0, groups=(0, 1), num_blocks=3), "num_blocks"),
        (lambda: dp.GroupedClipping(1.0, groups=(0, 1), num_groups=3), "num_groups"),
        (lambda: dp.ScaledClipping(float("nan")), "norm"),
        (lambda: dp.QuantileClipping(1.0, count_noise=0.0), "count_noise"),
        (lambda: dp.QuantileClipping(1.0, 1.0, target_quantile=1.5), "target_quantile"),
        (lambda: dp.AutomaticClipping(1.0, stability=0.0), "stability"),
        (lambda: dp.FixedNorms(prior="small"), "prior"),
        (lambda: dp.FixedNorms(prior=(1.0, 0.0)), "prior"),
        (lambda: dp.ReleasedNorms(every=0), "every"),
        (lambda: dp.ReleasedNorms(every="round"), "every"),
        (lambda: dp.ReleasedNorms(smoothing=0.0), "smoothing"),
        (lambda: dp.PublicNorms(every=3), "every"),
        (lambda: dp.PublicNorms(contributions=0), "contributions"),
        (lambda: dp.PrivateNorms(noise_multiplier=1.0, ceiling=1.0), "ceiling"),
    ],
)
def test_bad_arguments_of_the_others_are_named(make, name):
    with pytest.raises((ValueError, TypeError), match=f"^{name} must be .*; got {name}="):
        make()


def test_unknown_clipping_is_named():
    with pytest.raises(ValueError, match="clipping must be one of 'full'"):
        clipping.from_config({"name": "half", "norm": 1.0})
