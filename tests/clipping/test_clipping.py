"""FullGradientClipping, and the contract that every clipping keeps."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tfdpbc import clipping
from tfdpbc.clipping import FullGradientClipping

CLIPPINGS = [FullGradientClipping(0.7), FullGradientClipping(2.0, decay=0.9), FullGradientClipping(1.0, 0.5, "round")]
WIDE = st.floats(width=32, min_value=0) | st.just(float("nan"))


def test_every_clipping_is_covered_by_the_contract():
    assert {type(c) for c in CLIPPINGS} == set(clipping.by_name.values())


@pytest.mark.parametrize("kind", CLIPPINGS, ids=repr)
class TestContract:
    """What the engines and the plan rely on, for each clipping."""

    @given(norms=arrays(np.float32, (5, 1), elements=WIDE), round_index=st.integers(0, 40))
    def test_no_block_leaves_its_bound_whatever_comes(self, kind, norms, round_index):
        bounds = np.asarray(kind.bounds(round_index, 7), np.float32)
        weights = kind(norms, bounds).numpy()
        finite = np.isfinite(norms).all(axis=1)
        assert weights.shape == norms.shape
        assert (weights[~finite] == 0).all()
        assert ((weights >= 0) & (weights <= 1)).all()
        assert (weights[finite] * norms[finite] <= bounds * (1 + 1e-6)).all()

    def test_small_contributions_are_left_alone(self, kind):
        bounds = np.asarray(kind.bounds(0, 7), np.float32)
        norms = np.full((2, len(bounds)), 0.5, np.float32) * bounds
        np.testing.assert_array_equal(kind(norms, bounds), np.ones_like(norms))

    def test_bounds_in_a_graph_are_those_in_python(self, kind):
        for round_index in (0, 6, 7, 39):
            in_graph = tf.function(lambda r, kind=kind: kind.bounds(r, 7))(tf.constant(round_index, tf.int64))
            np.testing.assert_allclose(in_graph, kind.bounds(round_index, 7), rtol=1e-5)

    def test_round_trips(self, kind):
        assert clipping.from_config(json.loads(json.dumps(kind.to_config()))) == kind
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(kind))
        assert again == kind and hash(again) == hash(kind)

    def test_public_fields_are_frozen(self, kind):
        for field in kind.fields():
            with pytest.raises(AttributeError):
                setattr(kind, field, 0.123)


def test_full_clipping_is_the_formula_of_algorithm_1():
    norms = np.array([[0.0], [1.0], [2.0], [8.0], [np.inf], [np.nan]], np.float32)
    weights = FullGradientClipping(2.0)(norms, np.array([2.0], np.float32)).numpy()[:, 0]
    np.testing.assert_allclose(weights, [1, 1, 1, 0.25, 0, 0])


def test_decay_per_epoch_and_per_round():
    by_epoch, by_round = FullGradientClipping(1.0, 0.9), FullGradientClipping(1.0, 0.9, "round")
    assert [by_epoch.bounds(r, 3)[0] for r in range(7)] == pytest.approx([1, 1, 1, 0.9, 0.9, 0.9, 0.81])
    assert [by_round.bounds(r, 3)[0] for r in range(4)] == pytest.approx([1, 0.9, 0.81, 0.729])


@pytest.mark.parametrize(
    "arguments, name",
    [
        ({"norm": 0.0}, "norm"),
        ({"norm": -1.0}, "norm"),
        ({"norm": float("nan")}, "norm"),
        ({"norm": float("inf")}, "norm"),
        ({"norm": "1"}, "norm"),
        ({"norm": 1.0, "decay": 0.0}, "decay"),
        ({"norm": 1.0, "decay": 1.1}, "decay"),
        ({"norm": 1.0, "decay_every": "step"}, "decay_every"),
    ],
)
def test_bad_arguments_are_named(arguments, name):
    with pytest.raises((ValueError, TypeError), match=f"^{name} must be .*; got {name}="):
        FullGradientClipping(**arguments)


def test_unknown_clipping_is_named():
    with pytest.raises(ValueError, match="clipping must be one of 'full'"):
        clipping.from_config({"name": "half", "norm": 1.0})
