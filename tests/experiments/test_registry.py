"""Every row of experiments.md is there, and every setting is a training that can be planned and stated."""

import math

import pytest

from tfdpbc import models
from tfdpbc.clipping.blocks import layers_of
from tfdpbc.experiments import paper_b, registry, statement
from tfdpbc.experiments.setting import SIZES, Experiment, Setting, Sweep

# The rows of experiments.md that concern papers A and B, with the accuracies it claims.
ROWS = {
    "a-mnist": {98.3, 98.4},
    "a-cifar10": {71.5, 71.1},
    "b-convnet-sigma-small": {59.02},
    "b-convnet-sigma-large": {40.58},
    "b-convnet-no-dp": {80.55, 61.19},
    "b-convnet-batch-64": {43.42, 35.0, 40.0},
    "b-lenet-c": {84.80},
    "b-lenet-sigma": {84.80, 50.38, 67.0},
    "b-lenet-batch": {50.38, 45.11},
    "b-bn-ablation": set(),
    "b-individual": {21.12},
    "b-resnet": {66.66, 46.35},
    "b-resnet-no-bn": {30.0, 40.0, 18.0, 22.0},
    "b-multipliers": set(),
}
SETTINGS = [(name, setting) for name in ROWS for setting in registry.get(name).settings]


def test_every_row_has_its_experiment():
    assert set(registry.names()) == {*ROWS, "a-groups", "a-federated", "c-mnist", "c-cifar10", "c-accounting"}
    for name, claimed in ROWS.items():
        experiment = registry.get(name)
        assert experiment.paper == name[0].upper()
        assert {value for setting in experiment.settings for value in setting.claimed} == claimed


def test_what_the_rows_fix():
    """The cells of the table: model, noise, C, batch."""

    def row(name, setting):
        one = registry.chosen(registry.get(name), [setting])[0]
        return one.model, one.dataset, one.normalization, one.noise_multiplier, one.norm, one.batch_size

    convnet, lenet, resnet = (("convnet", "cifar10"), ("bn_lenet5", "mnist"), ("resnet18", "cifar10"))
    assert row("b-convnet-sigma-small", "C=0.9") == (*convnet, "batch", 0.01875, 0.9, 1024)
    assert row("b-convnet-sigma-large", "C=0.1") == (*convnet, "batch", 0.5, 0.1, 1024)
    assert row("b-convnet-batch-64", "C=0.14") == (*convnet, "batch", 0.5, 0.14, 64)
    assert row("b-lenet-c", "C=0.2") == (*lenet, "batch", 0.5, 0.2, 64)
    assert row("b-lenet-sigma", "sigma=1.5") == (*lenet, "batch", 1.5, 0.2, 64)
    assert row("b-lenet-batch", "batch=1024") == (*lenet, "batch", 2.5, 0.2, 1024)
    assert row("b-individual", "constant-step-constant-C") == (*convnet, "none", 0.5, 0.095, 64)
    assert row("b-resnet", "alc") == (*resnet, "batch", 0.01875, 0.095, 64)
    assert row("b-resnet-no-bn", "ic-constant-step-constant-C") == (*resnet, "none", 0.01875, 0.095, 64)
    for name, setting in SETTINGS:
        if name.startswith("b-"):
            assert setting.pad == {"mnist": 2, "cifar10": 4}[setting.dataset]
            assert (setting.learning_rate, setting.epochs, setting.public_share, setting.augment) == (
                0.025,
                50,
                0.1,
                True,
            )
        elif setting.private:
            assert setting.noise_multiplier == 2.0


@pytest.mark.parametrize("kind", sorted({(s.model, s.dataset, s.normalization) for _, s in SETTINGS}))
def test_every_setting_has_a_plan_of_the_noise_it_says(kind):
    model, dataset, normalization = kind
    net = models.build(model, statement.SHAPES[dataset], 10, normalization=normalization)
    layers = len(layers_of(net))
    chosen = [s for _, s in SETTINGS if (s.model, s.dataset, s.normalization) == kind and s.private]
    for setting in chosen:
        plan = statement.make_plan(setting, setting.num_private(SIZES[dataset]), setting.epochs, net)
        assert plan.sampling.num_examples == {("mnist", 0.1): 54_000, ("mnist", 0.0): 60_000}.get(
            (dataset, setting.public_share), 45_000 if setting.public_share else 50_000
        )
        assert plan.sampling.contributions * plan.sampling.examples_per_contribution == setting.batch_size
        assert plan.sampling.is_individual == (setting.clip == "individual")
        assert plan.clipping.composed_blocks() == {"layerwise": layers, "grouped": setting.num_groups}.get(
            setting.clipping, 1
        )
        divided = setting.batch_size if setting.noise_divided else 1
        assert plan.noise_multiplier == setting.noise_multiplier / divided
        assert plan.rounds == setting.epochs * (plan.sampling.num_examples // setting.batch_size)


@pytest.mark.parametrize("model", paper_b._LAYERS)
def test_equal_mu_rests_on_the_layers_that_are_there(model):
    net = models.build(model, (32, 32, 3), 10, normalization="batch")
    assert len(layers_of(net)) == paper_b._LAYERS[model]


def test_settings_at_equal_mu():
    """Within a prefix of b-multipliers, σ/√blocks is one number."""
    found = {}
    for setting in registry.get("b-multipliers").settings:
        if setting.note:
            continue
        layers = paper_b._LAYERS[setting.model]
        blocks = {"layerwise": layers, "grouped": setting.num_groups}.get(setting.clipping, 1)
        prefix = setting.name.replace("-wide", "").rsplit("-", 1)[0]
        found.setdefault(prefix, []).append(setting.noise_multiplier / math.sqrt(blocks))
    assert set(found) == {"lenet-0.5", "lenet-2.5", "lenet-2.5-ic", "convnet-0.5"}
    for noises in found.values():
        assert len(noises) == 6 and noises == pytest.approx([noises[0]] * 6, rel=1e-12)


def test_configs_tell_trainings_apart_and_nothing_else():
    first = Setting(name="a", dataset="mnist", model="mlp", claimed=(1.0,))
    same = Setting(name="b", dataset="mnist", model="mlp", note="other words", claimed_mu=3.0)
    assert first.config() == same.config()
    assert first.config() != Setting(name="a", dataset="mnist", model="mlp", norm=2.0).config()


def test_what_the_registry_refuses():
    with pytest.raises(ValueError, match="experiment must be one of .*'a-mnist'"):
        registry.get("a-mnst")
    with pytest.raises(ValueError, match="settings must be one of 'C=0.05'"):
        registry.chosen(registry.get("b-lenet-c"), ["C=7"])
    words = {"name": "x", "paper": "B", "title": "", "where": "", "claim": ""}
    one = Setting(name="a", dataset="mnist", model="mlp")
    with pytest.raises(ValueError, match="names of their own"):
        Experiment(**words, settings=(one, one))
    with pytest.raises(ValueError, match="that the sweeps name"):
        Experiment(**words, settings=(one,), sweeps=(Sweep("norm", "C", ("b",)),))
