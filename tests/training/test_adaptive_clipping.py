"""Rounds under the clippings of several blocks and those that adapt (pitfalls 1, 3, 4, 5, 8, 12, 14, 19)."""

import functools
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import SAMPLINGS, N, one_round, private, weights

X, Y = oracles.blobs(N)
PRIOR = (0.5, 2.0, 1.0)
FIXED = dp.FixedNorms(prior=PRIOR)
ADAPTING = {
    "layerwise-released": dp.LayerwiseClipping(0.8, estimates=dp.ReleasedNorms(every=3)),
    "layerwise-private": dp.LayerwiseClipping(0.8, estimates=dp.PrivateNorms(noise_multiplier=0.5, every=5)),
    "grouped-released": dp.GroupedClipping(0.8, num_groups=2, estimates=dp.ReleasedNorms(every=3)),
    "scaled-released": dp.ScaledClipping(0.8, estimates="released", decay=0.9),
    "scaled-public": dp.ScaledClipping(0.8, estimates="public"),
    "quantile": dp.QuantileClipping(0.8, count_noise=2.0),
}


def three_layers(**options):
    keras.utils.set_random_seed(options.get("seed", 4))
    sizes = options.get("sizes", (5, 4))
    inner = [keras.layers.Dense(size, "tanh") for size in sizes]
    return keras.Sequential([keras.Input((6,)), *inner, keras.layers.Dense(3)])


def parts(gradient):
    """A gradient of `three_layers` as the vectors of its layers."""
    return [np.concatenate([g.ravel() for g in gradient[i : i + 2]]).astype(np.float64) for i in (0, 2, 4)]


def clipped_layerwise(a):
    return [p / max(1, np.linalg.norm(p) / (0.4 * e / 2.0)) for p, e in zip(a, PRIOR, strict=True)]


def clipped_in_groups(a):
    """Layers 0 and 2 are a group of expected norm √(0.25 + 1), layer 1 one of 2."""
    pair = np.linalg.norm(np.concatenate([a[0], a[2]])) / (0.4 * np.sqrt(1.25) / 2.0)
    alone = np.linalg.norm(a[1]) / 0.4
    return [a[0] / max(1, pair), a[1] / max(1, alone), a[2] / max(1, pair)]


def clipped_scaled(a):
    """Literally: scale, clip as one, scale back."""
    factors = [2.0 / e for e in PRIOR]
    scaled = [m * p for m, p in zip(factors, a, strict=True)]
    size = np.linalg.norm(np.concatenate(scaled))
    return [p / max(1, size / 0.4) / m for m, p in zip(factors, scaled, strict=True)]


def normalised(a):
    size = np.linalg.norm(np.concatenate(a))
    return [0.4 * p / (size + 0.01) for p in a]


RULES = {
    "layerwise": (dp.LayerwiseClipping(0.4, estimates=FIXED), clipped_layerwise),
    "grouped": (dp.GroupedClipping(0.4, groups=(0, 1, 0), estimates=FIXED), clipped_in_groups),
    "scaled": (dp.ScaledClipping(0.4, estimates=FIXED), clipped_scaled),
    "automatic": (dp.AutomaticClipping(0.4), normalised),
}


@pytest.mark.parametrize(
    "name, engine",
    [
        ("shuffling-mixed", "vectorized"),
        ("subsampling-individual", "onepass"),
        pytest.param("poisson-individual", "vectorized", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("rule", RULES)
def test_the_update_is_that_of_a_plain_loop(rule, name, engine):
    clipping, clip = RULES[rule]
    sampling = SAMPLINGS[name]
    m, s = sampling.shape
    model = private(sampling, three_layers(), clipping=clipping, engine=engine)
    before = weights(model)
    indices = np.arange(m * s).reshape(m, s) % N
    one_round(model, X, Y, indices)
    total = [0.0] * 3
    for group in indices:
        gradient = oracles.example_gradient(three_layers(), X[group], Y[group])
        total = [t + c for t, c in zip(total, clip(parts(gradient)), strict=True)]
    moved = parts([old - new for old, new in zip(before, weights(model), strict=True)])
    for got, want in zip(moved, total, strict=True):
        np.testing.assert_allclose(got, want / sampling.divisor, rtol=3e-4, atol=1e-7)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["shuffling-batch", "poisson-individual", "poisson-mixed"])
def test_pitfalls_1_and_3_each_block_has_the_noise_of_its_own_sensitivity(rule, name):
    """With a zero gradient block j moves with std f C_j σ / m: 2 C_j σ under fixed sizes; and against it the whole has
    sensitivity f √(Σ C_j²). About 6,000 to 12,000 numbers a block: 6 standard errors are exceeded with probability 2e-9."""
    sampling, sigma = SAMPLINGS[name], 1.7
    clipping, _ = RULES[rule]
    net = three_layers(sizes=(900, 12))
    model = private(sampling, net, clipping=clipping, noise=sigma, loss=lambda y, p: 0.0 * tf.reduce_sum(p, -1))
    before = weights(model)
    m, s = sampling.shape
    one_round(model, X, Y, np.arange(m * s).reshape(m, s) % N)
    moved = parts([new - old for new, old in zip(weights(model), before, strict=True)])
    group = 0.4 * np.sqrt(1.25) / 2
    bounds = {"layerwise": (0.1, 0.4, 0.2), "grouped": (group, 0.4, group), "scaled": (0.1, 0.4, 0.2)}
    bounds = bounds.get(rule, (0.4, 0.4, 0.4))
    factor = 1 if name == "poisson-individual" else 2
    for part, bound in zip(moved, bounds, strict=True):
        want = sigma * factor * bound / sampling.divisor
        assert part.std() == pytest.approx(want, rel=6 / np.sqrt(2 * part.size))
    expected = [sigma * factor * b for b in bounds]
    got = model.plan.noise_std(0, model.clip_norms())
    assert got == pytest.approx(expected[: len(got)])
    whole = np.linalg.norm(model.plan.sensitivities(model.clip_norms()))
    assert whole == pytest.approx(factor * np.linalg.norm(bounds[: len(got)]))


@pytest.mark.parametrize("sampling", [dp.Shuffling(N, 1, 6), dp.Poisson(0.25, 4, 6, 1)], ids=["shuffling", "poisson"])
@pytest.mark.parametrize("rule", ["layerwise", "scaled"])
def test_pitfall_4_a_group_mean_can_turn_from_plus_to_minus_in_every_block(rule, sampling):
    """One example decides where all blocks of its contribution point: each moves by twice what it is clipped to."""
    inputs = {name: keras.Input((1,), name=name) for name in "ab"}
    dense = [keras.layers.Dense(1, use_bias=False)(t) for t in inputs.values()]
    net = keras.Model(inputs, keras.layers.Add()(dense))
    x = np.zeros((N, 1), np.float32)
    x[0], x[1] = 1, -5
    kind = {"layerwise": dp.LayerwiseClipping, "scaled": dp.ScaledClipping}[rule]
    clipping = kind(0.5, estimates=dp.FixedNorms(prior=(1.0, 4.0)))
    sums = []
    for present in ([0], [0, 1]):
        model = private(sampling, net, clipping=clipping, loss=lambda y, p: 1e3 * p[:, 0])
        net.set_weights([np.zeros((1, 1))] * 2)
        indices = np.full(sampling.shape, 2)
        indices[0, : len(present)] = present
        one_round(model, {"a": x, "b": x}, np.zeros(N), indices)
        sums.append(-np.array(net.get_weights()).ravel() * sampling.divisor)
    apart = np.abs(sums[0] - sums[1])
    unit = apart / model.plan.sensitivities(model.clip_norms())
    if rule == "layerwise":
        np.testing.assert_allclose(unit, [1, 1], rtol=1e-5)
    else:
        assert np.linalg.norm(unit) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("name", [name for name in ADAPTING if name != "quantile"])
def test_pitfall_5_without_noise_and_clipping_it_is_plain_sgd(name):
    fields = ADAPTING[name].to_config()
    fields |= {"master_norm" if "master_norm" in fields else "norm": 1e9, "decay": 1.0}
    if fields["estimates"]["name"] == "released":
        fields["estimates"] = {"name": "fixed"}  # others see that so wide a bound is hardly used and narrow it
    model = private(dp.Shuffling(N, 6, 1), three_layers(), clipping=dp.clipping.from_config(fields))
    reference = three_layers()
    for r in range(3):
        gradient = oracles.example_gradient(reference, X[6 * r : 6 * r + 6], Y[6 * r : 6 * r + 6])
        for variable, g in zip(reference.trainable_variables, gradient, strict=True):
            variable.assign(variable - g)
        one_round(model, X, Y, np.arange(6 * r, 6 * r + 6)[:, None], round_index=r)
    np.testing.assert_allclose(oracles.flat(weights(model)), oracles.flat(weights(reference)), atol=1e-6)


def trained(name, epochs=None, model=None, **options):
    options = {"sampling": dp.Shuffling(N, 6, 1), "noise": 1e-3 if "released" in name else 0.4, **options}
    if model is None:
        model = private(options.pop("sampling"), three_layers(), clipping=ADAPTING[name], **options)
    public = (X[:9], Y[:9]) if name.endswith("public") else None
    model.fit(X, Y, epochs=epochs, verbose=0, public_data=public)
    return model


@functools.cache
def whole_run(name):
    """All epochs at once, for several tests to compare with."""
    return trained(name)


@pytest.mark.parametrize("name", ADAPTING)
class TestAdapting:
    def test_norms_change_and_engines_agree(self, name):
        one, other = whole_run(name), trained(name, engine="vectorized")
        assert "onepass" in one.engine_reason and "vectorized" in other.engine_reason
        start = private(dp.Shuffling(N, 6, 1), three_layers(), clipping=ADAPTING[name]).clip_norms()
        assert not np.allclose(one.clip_norms(), start)
        np.testing.assert_allclose(one.clip_norms(), other.clip_norms(), rtol=1e-3)
        np.testing.assert_allclose(oracles.flat(weights(one)), oracles.flat(weights(other)), atol=1e-4)

    def test_pitfall_14_a_resumed_run_is_the_uninterrupted_one(self, name, tmp_path):
        """1 + 2 epochs of 4 rounds, refreshed every 3 or 5 rounds or each epoch: the state goes on inside its window."""
        whole = whole_run(name)
        first = trained(name, epochs=1)
        first.save_checkpoint(tmp_path / "state.npz")
        second = private(
            dp.Shuffling(N, 6, 1),
            three_layers(seed=77),
            clipping=ADAPTING[name],
            noise=first.plan.noise_multiplier,
        )
        second.load_checkpoint(tmp_path / "state.npz")
        np.testing.assert_array_equal(second.clip_norms(), first.clip_norms())
        trained(name, model=second)
        np.testing.assert_array_equal(second.clip_norms(), whole.clip_norms())
        np.testing.assert_array_equal(oracles.flat(weights(second)), oracles.flat(weights(whole)))


@pytest.mark.parametrize("name", ["layerwise-private", "grouped-released"])
def test_pitfall_12_passes_and_calls_change_nothing(name):
    """Contributions one by one, several rounds a call: one measurement, one noise, the same state."""
    one = whole_run(name)
    for other in (trained(name, physical_batch_size=1), trained(name, steps_per_execution=3)):
        np.testing.assert_allclose(one.clip_norms(), other.clip_norms(), rtol=1e-3)
        np.testing.assert_allclose(oracles.flat(weights(one)), oracles.flat(weights(other)), atol=1e-4)


def test_pitfall_8_the_target_quantile_is_reached():
    """Contributions have the norms 1..24 (and stay so: the learning rate is 0). After 80 rounds of all of them the norm has
    settled where the target share lies below it, up to the noise of the counts (σ_b = 0.3 of 24, averaged by the steps)."""
    net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    x = np.arange(1, N + 1, dtype=np.float32)[:, None]
    for target in (0.25, 0.75):
        clipping = dp.QuantileClipping(0.1, count_noise=0.3, target_quantile=target, learning_rate=0.3)
        sampling = dp.Shuffling(N, N, 1)
        model = private(
            sampling, net, clipping=clipping, noise=0.2, epochs=80, loss=lambda y, p: p[:, 0],
            optimizer=keras.optimizers.SGD(0.0), steps_per_execution=1,
        )  # fmt: skip
        model.fit(x, np.zeros(N), verbose=0)
        share = (x[:, 0] <= model.clip_norms()[0]).mean()
        assert abs(share - target) <= 0.1


def test_quantile_update_is_the_formula_and_its_noise_is_another():
    """One round: C exp(−η (b̃ − γ)); the same seed's measurement noise has std σ_b/m over 120 keys (6 standard errors)."""
    clipping = dp.QuantileClipping(1.0, count_noise=1.5, target_quantile=0.5, learning_rate=1.0)
    model = private(dp.Shuffling(N, 6, 1), three_layers(), clipping=clipping, noise=0.5)
    norms = [
        np.linalg.norm(np.concatenate(parts(oracles.example_gradient(three_layers(), X[[i]], Y[[i]]))))
        for i in range(6)
    ]
    start, found = model.model.get_weights(), []
    for r in range(120):
        model.model.set_weights(start)
        model._clip_state["norm"].assign([1.0])
        one_round(model, X, Y, np.arange(6)[:, None], round_index=r)
        found.append(0.5 - np.log(model.clip_norms()[0]))
    noise = np.array(found) - np.mean(np.array(norms) <= 1.0)
    assert noise.std() == pytest.approx(1.5 / 6, rel=6 / np.sqrt(240))
    assert abs(noise.mean()) < 6 * 0.25 / np.sqrt(120)


def test_public_norms_are_means_over_public_contributions():
    """All public examples are the same, so that the mean is the norm of one."""
    x, y = np.repeat(X[:1], 5, 0), np.repeat(Y[:1], 5)
    want = np.array([np.linalg.norm(p) for p in parts(oracles.example_gradient(three_layers(), x[:1], y[:1]))])
    for sampling in (dp.Shuffling(N, 6, 1), dp.Shuffling(N, 1, 6), dp.Poisson(0.25, 4, 6, 2)):
        model = private(sampling, three_layers(), clipping=dp.LayerwiseClipping(0.8, estimates="public"), noise=1.0)
        model.fit(X, Y, epochs=1, verbose=0, public_data=(x, y))
        np.testing.assert_allclose(model._clip_state["estimates"].numpy(), want, rtol=1e-4)
        np.testing.assert_allclose(model.clip_norms(), 0.8 * want / want.max(), rtol=1e-4)
        assert "not protected" in " ".join(model.spent.guarantee(1e-5)["warnings"])


def test_public_data_is_asked_for_and_refused_by_name():
    model = private(dp.Shuffling(N, 6, 1), three_layers(), clipping=ADAPTING["scaled-public"])
    with pytest.raises(ValueError, match="public_data must be given"):
        model.fit(X, Y, verbose=0)
    with pytest.raises(ValueError, match=r"public_data must be \(x, y\)"):
        model.fit(X, Y, verbose=0, public_data=X)
    other = private(dp.Shuffling(N, 6, 1), three_layers())
    with pytest.raises(ValueError, match="public_data must be None"):
        other.fit(X, Y, verbose=0, public_data=(X, Y))
    assert model.spent.rounds == other.spent.rounds == 0


def test_a_nan_contribution_is_left_out_of_update_and_measurement():
    x = X.copy()
    x[1] = np.nan
    for name in ("grouped-released", "scaled-released", "layerwise-private", "quantile"):
        model = private(dp.Shuffling(N, 6, 1), three_layers(), clipping=ADAPTING[name], noise=1e-3)
        one_round(model, x, Y, np.arange(6)[:, None], round_index=2)
        assert np.isfinite(oracles.flat(weights(model))).all()
        assert np.isfinite(model.clip_norms()).all() and (model.clip_norms() > 0).all()


SCRIPT = """
import json
import keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tfdpbc as dp

rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 6)).astype(np.float32), rng.integers(0, 3, 64)
one, two = tf.distribute.OneDeviceStrategy("/cpu:0"), tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
found = []
for clipping, noise in (
    (dp.GroupedClipping(0.5, num_groups=2, estimates=dp.ReleasedNorms(every=3)), 1e-3),
    (dp.LayerwiseClipping(0.5, estimates=dp.PrivateNorms(noise_multiplier=2.0, every=3)), 0.5),
):
    models = []
    for strategy in (one, two):
        with strategy.scope():
            keras.utils.set_random_seed(3)
            net = keras.Sequential([keras.Input((6,)), *(keras.layers.Dense(5, "tanh") for _ in "ab"), keras.layers.Dense(3)])
            model = dp.PrivateModel(net, dp.PrivacyPlan(dp.Poisson(0.1, 9, 16), clipping, noise, 2), seed=5)
            model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(x, y, verbose=0)
        models.append(model)
    a, b = models
    apart = max(float(np.abs(p - q).max()) for p, q in zip(a.model.get_weights(), b.model.get_weights()))
    norms = float(np.abs(a.clip_norms() / b.clip_norms() - 1).max())
    copies = [float(np.abs(np.subtract(*(t.numpy() for t in v.value.values))).max()) for v in b._clip_state.values()]
    found.append([apart, norms, max(copies), float(np.ptp(a.clip_norms()))])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_replicas_hold_the_same_state_as_one_device(tmp_path):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for apart, norms, copies, _ in json.loads(done.stdout.splitlines()[-1]):
        assert apart < 1e-5 and norms < 1e-4 and copies == 0


@pytest.mark.slow
def test_xla_gives_the_same():
    # Without noise: XLA makes other normal numbers of the same key.
    one, other = (trained("grouped-released", noise=0.0, jit_compile=jit, epochs=1) for jit in (False, True))
    np.testing.assert_allclose(one.clip_norms(), other.clip_norms(), rtol=1e-3)
    np.testing.assert_allclose(oracles.flat(weights(one)), oracles.flat(weights(other)), atol=1e-4)
