"""The plan options: each combination gives the plan it describes; contradictions and nonsense are refused."""

import click
import pytest

from tfdpbc import aggregation, clipping, compatibility, sampling
from tfdpbc.algorithms import BatchGradient, LocalOptimizer, rules
from tfdpbc.cli import defaults, job, options
from tfdpbc.gradients import auto
from tfdpbc.statistics import PrivateStatistics

SIZE = 5000
UNSET = {
    "sampling": "poisson",
    "clip": None,
    "batch_size": None,
    "contributions": None,
    "examples_per_contribution": None,
    "clipping": "full",
    "norm": 0.5,
    "norm_decay": 0.9,
    "aggregation": "sum",
    "epochs": 3,
    "delta": 1e-5,
    "noise_multiplier": 2.0,
    "epsilon": None,
}


def plan(num_examples=SIZE, **given):
    given = UNSET | given
    options.check(given)
    return options.make_plan(given, num_examples)


def test_choices_are_those_of_the_registries():
    assert set(defaults.CLIPPINGS) == set(clipping.by_name)
    assert set(defaults.AGGREGATIONS) == set(aggregation.by_name)
    assert set(defaults.ENGINES) == set(auto.ENGINES)
    assert set(defaults.AUGMENTS) == set(job.AUGMENTS)
    assert set(defaults.STATISTICS) == set(compatibility.STATISTICS)
    assert set(defaults.SAMPLINGS) == set(sampling.by_name)
    assert set(defaults.ALGORITHMS) == {"batch-gradient", *(f"local-{name}" for name in rules.by_name)}


@pytest.mark.parametrize("name, kind", [("shuffling", sampling.Shuffling), ("subsampling", sampling.Subsampling)])
def test_fixed_sizes(name, kind):
    assert plan(sampling=name, batch_size=10).sampling == kind.individual(SIZE, 10)
    assert plan(sampling=name, clip="individual", batch_size=10).sampling == kind(SIZE, 10, 1)
    assert plan(sampling=name, clip="batch", batch_size=10).sampling == kind.batch(SIZE, 10)
    assert plan(sampling=name, contributions=7, examples_per_contribution=4).sampling == kind(SIZE, 7, 4)
    assert plan(sampling=name, contributions=7).sampling == kind(SIZE, 7, 1)


def test_poisson():
    assert plan(batch_size=10).sampling == sampling.Poisson.individual(SIZE, 10)
    assert plan(clip="batch", batch_size=10).sampling == sampling.Poisson.batch(SIZE, 10)
    assert plan(clip="batch", batch_size=1).sampling == sampling.Poisson(1 / SIZE, SIZE, 1, 1)
    assert plan(contributions=7).sampling == sampling.Poisson.individual(SIZE, 7)
    mixed = plan(contributions=7, examples_per_contribution=4).sampling
    assert mixed == sampling.Poisson(28 / SIZE, SIZE // 28, 28, contributions=7)


def test_poisson_with_a_rate():
    assert plan(None, rate=0.01).sampling == sampling.Poisson(0.01, 100, 1)
    assert plan(None, rate=1 / 49).sampling.rounds_per_epoch == 49
    assert plan(None, rate=1.0).sampling == sampling.Poisson(1.0, 1, 1)
    assert plan(None, rate=0.01, rounds_per_epoch=7, batch_size=64).sampling == sampling.Poisson(0.01, 7, 64)
    assert plan(5000, rate=0.01).sampling == sampling.Poisson(0.01, 100, 50)
    groups = plan(None, rate=0.01, contributions=2, examples_per_contribution=3).sampling
    assert groups == sampling.Poisson(0.01, 100, 6, contributions=2)


def test_balls_in_bins():
    kind = sampling.BallsInBins
    assert plan(sampling="balls-in-bins", batch_size=10).sampling == kind(500, 10)
    assert plan(sampling="balls-in-bins", batch_size=10, clip="individual").sampling == kind(500, 10)
    assert plan(sampling="balls-in-bins").sampling == kind(5, 1024)
    assert plan(None, sampling="balls-in-bins", rounds_per_epoch=7, batch_size=64).sampling == kind(7, 64)
    assert plan(None, sampling="balls-in-bins", rounds_per_epoch=7).sampling == kind(7, 1024)
    assert plan(sampling="balls-in-bins", rounds_per_epoch=7).sampling == kind(7, 715)


def test_the_rest_of_the_plan():
    made = plan()
    assert made.clipping.fields() == {"norm": 0.5, "decay": 0.9, "decay_every": "epoch"}
    assert (made.noise_multiplier, made.epochs) == (2.0, 3)


BATCHES = {"sampling": "shuffling", "clip": "batch", "batch_size": 10}


def test_private_statistics():
    assert plan(**BATCHES).statistics is None
    assert plan(**BATCHES, statistics="private").statistics == PrivateStatistics()
    made = plan(**BATCHES, statistics="private", statistics_norm=0.5, statistics_noise_ratio=2.0)
    assert made.statistics == PrivateStatistics(0.5, 2.0)
    for name in ("batch", "unprotected"):  # not released by the plan
        assert plan(**BATCHES, statistics=name).statistics is None
    assert plan(**BATCHES, statistics="public", public_share=0.1).statistics is None
    with pytest.raises(ValueError, match="statistics must be None: batch normalisation needs contributions of several"):
        plan(statistics="private")


@pytest.mark.parametrize(
    "given, message",
    [
        ({"epsilon": 1.0}, "--noise-multiplier or --epsilon"),
        ({"contributions": 2, "batch_size": 4}, "--contributions, not both"),
        ({"contributions": 2, "clip": "batch"}, "--contributions, not both"),
        ({"examples_per_contribution": 2}, "needs --contributions"),
        ({"sampling": "shuffling", "rate": 0.1}, "--rate is for Poisson"),
        ({"rounds_per_epoch": 3, "rate": None}, "needs --rate"),
        ({"sampling": "shuffling", "rounds_per_epoch": 3}, "needs --rate, or --sampling balls-in-bins"),
        ({"sampling": "balls-in-bins", "clip": "batch"}, "balls-in-bins clips each example"),
        ({"sampling": "balls-in-bins", "contributions": 2}, "balls-in-bins clips each example"),
        ({"sampling": "balls-in-bins", "rate": 0.1}, "--rate is for Poisson"),
        ({"statistics_norm": 0.1}, "--statistics-norm is for --statistics private"),
        ({"statistics": "batch", "statistics_noise_ratio": 2.0}, "--statistics-noise-ratio is for"),
        ({"statistics": "public"}, "needs --public-share"),
        ({"statistics": "private", "public_share": 0.1}, "nothing else does"),
    ],
)
def test_contradictions_are_usage_errors(given, message):
    with pytest.raises(click.UsageError, match=message):
        plan(**given)


@pytest.mark.parametrize("name", ["shuffling", "poisson", "balls-in-bins"])
def test_a_missing_size_is_a_usage_error(name):
    with pytest.raises(click.UsageError, match="--num-examples is missing"):
        plan(None, sampling=name)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["noise_multiplier", "epsilon", "norm"])
def test_pitfall_28_values_that_are_not_positive(name, value):
    """pitfall 28: epsilon = 0 is refused, not read as "not set"."""
    given = {"noise_multiplier": None} if name == "epsilon" else {}
    with pytest.raises(ValueError, match=f"{name} must be a finite number > 0; got {name}="):
        plan(**given, **{name: value})


@pytest.mark.parametrize(
    "given, message",
    [
        ({"delta": 0.0}, "delta must be"),
        ({"delta": 1.0}, "delta must be"),
        ({"epochs": 0}, "epochs must be an integer >= 1"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1"),
        ({"batch_size": SIZE + 1}, "batch_size must be"),
        ({"batch_size": SIZE + 1, "sampling": "shuffling"}, "num_examples must be at least one round"),
        ({"rate": 0.0}, "rate must be"),
        ({"norm_decay": 1.5}, "decay must be"),
        ({**BATCHES, "statistics": "private", "statistics_norm": 0.0}, "statistics_norm must be"),
        ({"statistics": "public", "public_share": 1.0}, "public_share must be"),
    ],
)
def test_impossible_values(given, message):
    with pytest.raises(ValueError, match=message):
        plan(**given)


def test_the_algorithm():
    unset = {"local_learning_rate": None, "passes": None, "minibatch_size": None}
    assert job.algorithm({"algorithm": "batch-gradient"} | unset) == BatchGradient()
    for name in rules.by_name:
        made = job.algorithm({"algorithm": f"local-{name}"} | unset)
        assert made.to_config() == LocalOptimizer(name, 0.01).to_config()
    given = {"local_learning_rate": 0.5, "passes": 3, "minibatch_size": 8}
    made = job.algorithm({"algorithm": "local-adam"} | given)
    assert made.to_config() == LocalOptimizer("adam", 0.5, 3, 8).to_config()
    options.check(UNSET | given | {"algorithm": "local-adam"})
    for name, value in given.items():
        with pytest.raises(click.UsageError, match=f"--{name.replace('_', '-')} is for local optimizers"):
            options.check(UNSET | {"algorithm": "batch-gradient", name: value})
        with pytest.raises(ValueError, match=name):
            options.check(UNSET | {"algorithm": "local-sgd", name: 0})
