"""Which layers are blocks; a guarantee is never stated for another number of them."""

import dataclasses
import math

import keras
import numpy as np
import pytest

import tfdpbc as dp
from tests import oracles
from tfdpbc.accounting import Gaussian, fixed_size
from tfdpbc.errors import IncompatibleModel

BATCH = dp.Shuffling(24, 1, 6)
KINDS = [
    lambda **o: dp.LayerwiseClipping(1.0, **o),
    lambda **o: dp.GroupedClipping(1.0, num_groups=2, **o),
    lambda **o: dp.ScaledClipping(1.0, **o),
]


def plan(clipping, sampling=BATCH, noise=1.5, epochs=3):
    return dp.PrivacyPlan(sampling, clipping, noise, epochs)


def test_bn_lenet5_has_the_eight_layers_of_paper_b():
    net = dp.models.bn_lenet5((28, 28, 1), 10, normalization="batch")
    found = [layer.name for layer, _ in dp.clipping.layers_of(net)]
    assert len(found) == 8
    assert [type(layer).__name__ for layer, _ in dp.clipping.layers_of(net)] == [
        *["Conv2D", "BatchNormalization"] * 3,
        *["Dense"] * 2,
    ]
    bound = plan(dp.LayerwiseClipping(1.0)).for_model(net)
    assert bound.clipping.num_blocks() == 8
    blocks = bound.clipping.blocks_of(net)
    assert [v.path.rsplit("/", 1)[0] for v in net.trainable_variables] == [found[j] for j in blocks]


def shared_and_nested():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    shared, frozen = keras.layers.Dense(6, name="same"), keras.layers.Dense(6, trainable=False)
    inner = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6, name="same"), keras.layers.Dense(6)])
    recurrent = keras.layers.LSTM(3)(keras.layers.Reshape((2, 3))(inner(frozen(shared(shared(inputs))))))
    return keras.Model(inputs, keras.layers.Dense(2, name="out")(recurrent))


def test_layers_are_objects_not_names():
    """A shared layer is one, a nested one counts on its own though its name is taken, a frozen one does not count."""
    found = dp.clipping.layers_of(shared_and_nested())
    assert [type(layer).__name__ for layer, _ in found] == ["Dense", "Dense", "Dense", "LSTMCell", "Dense"]
    assert [positions for _, positions in found] == [[0, 1], [2, 3], [4, 5], [6, 7, 8], [9, 10]]


@pytest.mark.parametrize("make", KINDS)
def test_blocks_are_checked_against_the_model(make):
    net = oracles.dense_net()
    model = dp.PrivateModel(net, plan(make()))
    assert model.plan.clipping.num_blocks() == 2
    assert dp.PrivateModel(net, plan(make(num_blocks=2))).plan == model.plan
    with pytest.raises(IncompatibleModel, match="num_blocks must be the 2 layers .* got num_blocks=3"):
        dp.PrivateModel(net, plan(make(num_blocks=3)))
    with pytest.raises(ValueError, match="prior must be one number for each of the 2 blocks"):
        dp.PrivateModel(net, plan(make(estimates=dp.FixedNorms(prior=(1.0, 2.0, 3.0)))))
    unbuilt = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(IncompatibleModel, match="model must be built"):
        dp.PrivateModel(unbuilt, plan(make()))
    with pytest.raises(IncompatibleModel, match="num_blocks"):
        dp.PrivateModel(net, plan(dp.GroupedClipping(1.0, groups=(0, 1, 1))))


def test_no_guarantee_without_the_number_of_blocks():
    open_plan = plan(dp.LayerwiseClipping(1.0))
    for ask in (
        lambda: open_plan.epsilon(1e-5),
        lambda: open_plan.trade_off(),
        lambda: str(open_plan),
        lambda: open_plan.calibrate(1.0, 1e-5),
        lambda: open_plan.bounds(1e-5),
    ):
        with pytest.raises(ValueError, match="num_blocks must be given .*plan.for_model"):
            ask()
    assert open_plan.for_model(oracles.dense_net()).epsilon(1e-5) > 0


@pytest.mark.parametrize(
    "sampling",
    [
        *(kind(24, *ms) for kind in (dp.Shuffling, dp.Subsampling) for ms in ((6, 1), (1, 6), (3, 2))),
        *(dp.Poisson(0.25, 4, 6), dp.Poisson(0.25, 4, 6, 2), dp.BallsInBins(4, 6)),
    ],
    ids=repr,
)
def test_accounting_is_that_of_sigma_over_root_blocks(sampling):
    """accounting.md, section 3: L blocks, the groups, nothing for scaled clipping; under every sampling."""
    full = plan(dp.FullGradientClipping(1.0), sampling)
    for clipping, composed in (
        (dp.LayerwiseClipping(1.0, num_blocks=5), 5),
        (dp.GroupedClipping(1.0, groups=(0, 0, 1, 2, 1)), 3),
        (dp.GroupedClipping(1.0, num_groups=2), 2),
        (dp.ScaledClipping(1.0), 1),
        (dp.ScaledClipping(1.0, estimates=dp.PrivateNorms(noise_multiplier=5.0), num_blocks=5), 1),
        (dp.QuantileClipping(1.0, count_noise=5.0), 1),
        (dp.AutomaticClipping(), 1),
    ):
        found = plan(clipping, sampling)
        weaker = dataclasses.replace(full, noise_multiplier=1.5 / math.sqrt(composed))
        assert found.epsilon(1e-4) == weaker.epsilon(1e-4)
        assert found.trade_off(2).f(0.3) == weaker.trade_off(2).f(0.3)


def test_closed_forms_of_the_factor():
    """One shuffled batch per round: exactly G_{√(E L)/σ}. Paper B's convnet: G_0.5213 with √8 in σ, certified ε as in
    accounting.md section 6."""
    shuffled = plan(dp.LayerwiseClipping(1.0, num_blocks=8), noise=2.5)
    assert shuffled.trade_off().mu == pytest.approx(math.sqrt(3 * 8) / 2.5, rel=1e-12)
    assert shuffled.epsilon(1e-5) == pytest.approx(Gaussian(math.sqrt(24) / 2.5).epsilon(1e-5), rel=1e-9)
    paper = plan(dp.LayerwiseClipping(1.0, num_blocks=8), dp.Subsampling(54_000, 1, 64), noise=2.5, epochs=50)
    assert paper.bounds(1e-5)["clt"]["epsilon"] == pytest.approx(2.08813, rel=1e-3)
    want = fixed_size(64 / 54_000, 2.5, paper.rounds, num_blocks=8).epsilon(1e-5)
    assert paper.bounds(1e-5)["subsampled"]["epsilon"] == pytest.approx(want, rel=1e-9)


def test_calibration_knows_the_blocks():
    done = plan(dp.LayerwiseClipping(1.0, num_blocks=4)).calibrate(2.0, 1e-5)
    full = plan(dp.FullGradientClipping(1.0)).calibrate(2.0, 1e-5)
    assert done.noise_multiplier == pytest.approx(2 * full.noise_multiplier, rel=2e-3)
    assert 1.98 <= done.epsilon(1e-5) <= 2.0


def test_keras_files_keep_plan_and_state(tmp_path):
    x, y = oracles.blobs(24)
    model = dp.PrivateModel(oracles.dense_net(), plan(dp.GroupedClipping(5.0, num_groups=2), noise=1e-3), seed=1)
    model.compile(keras.optimizers.SGD(0.1), oracles.LOSS)
    model.fit(x, y, epochs=1, verbose=0)
    assert not np.allclose(model.clip_norms(), [5.0, 5.0])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.plan == model.plan
    np.testing.assert_array_equal(again.clip_norms(), model.clip_norms())
