"""The options of robust aggregations and of attacks."""

import click
import pytest

import tfdpbc as dp
from tests.cli.test_options import plan
from tfdpbc.accounting.ptr import ProposeTestRelease
from tfdpbc.cli import defaults
from tfdpbc.cli.options import NOT_PRIVATE
from tfdpbc.data.corruption import ATTACKS, Attack

TRIMMED = {"trim": 12, "release_norm": 0.1, "laplace_scale": 2.0, "threshold": 6.0}
ONE = {"norm_decay": 1.0, "batch_size": 100, "aggregation": "trimmed"}


def test_a_trimmed_plan():
    made = plan(**ONE, **TRIMMED, fail_noise_multiplier=0.7)
    assert made.aggregation == dp.TrimmedSum(12, 0.1, 2.0, 6.0, 0.7)
    want = ProposeTestRelease(12, 6.0, 2.0, 0.1, 0.5, 2.0, 0.7).epsilon(1e-5, 0.02, 150)
    assert made.epsilon(1e-5) == pytest.approx(want, rel=1e-12)
    assert plan(aggregation="global-trimmed", trim=3).aggregation == dp.GlobalTrimmedSum(3)


@pytest.mark.parametrize("name", NOT_PRIVATE)
def test_medians_have_no_noise(name):
    made = plan(aggregation=name, noise_multiplier=None)
    assert made.noise_multiplier == 0 and made.aggregation.name == name and name in defaults.AGGREGATIONS
    for given in ({"noise_multiplier": 1.0}, {"noise_multiplier": None, "epsilon": 1.0}):
        with pytest.raises(click.UsageError, match="is not private"):
            plan(aggregation=name, **given)


@pytest.mark.parametrize("name", TRIMMED)
def test_what_trimming_needs(name):
    with pytest.raises(click.UsageError, match=f"needs --{name.replace('_', '-')}"):
        plan(**ONE, **{key: value for key, value in TRIMMED.items() if key != name})
    with pytest.raises(click.UsageError, match=f"--{name.replace('_', '-')} is not for --aggregation sum"):
        plan(**{name: TRIMMED[name]})


def test_what_the_plan_refuses():
    with pytest.raises(ValueError, match="clipping must be of a constant norm"):
        plan(**(ONE | {"norm_decay": 0.9}), **TRIMMED)
    with pytest.raises(ValueError, match="release_norm must be a finite number > 0"):
        plan(**ONE, **(TRIMMED | {"release_norm": -1.0}))


def test_attacks_are_those_of_the_registry():
    assert {Attack.parse(f"{kind}:0.1").kind for kind in ATTACKS} == set(ATTACKS)
