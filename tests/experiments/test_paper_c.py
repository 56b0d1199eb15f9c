"""The experiments of paper C: plans of equal ε, attacks where a setting says so, and what is printed of them."""

import dataclasses
import json

import numpy as np
import pytest

from tests.experiments import helpers
from tfdpbc.attacked_model import AttackedModel
from tfdpbc.experiments import paper_c, ptr_curves, registry, robust_tables, runner, statement, training
from tfdpbc.experiments.results import Results
from tfdpbc.experiments.setting import Experiment, Robust, Setting
from tfdpbc.keras_model import PrivateModel

EPSILON = 30.0  # the rounds of 200 examples are small
BASE = Setting(
    name="",
    dataset="stripes",
    model="tiny",
    normalization="none",
    clip="individual",
    clipping="full",
    sampling="poisson",
    batch_size=100,
    norm=2.0,
    learning_rate_decay=1.0,
    augment=False,
    public_share=0.0,
)
ROBUST = Robust(aggregation="trimmed", epsilon=EPSILON, release_norm=1.0, assumed=0.1)
HIT = {"attack": "gradient-random", "share": 0.1, "strength": 1e3}
SMALL = Experiment(
    name="c-small",
    paper="C",
    title="small",
    where="Section 0",
    claim="better",
    settings=tuple(
        dataclasses.replace(BASE, name=name, robust=robust)
        for name, robust in {
            "ptr-clean": ROBUST,
            "ptr-gradient-random:0.1": dataclasses.replace(ROBUST, **HIT),
            "ptr-gradient-random:0.3": dataclasses.replace(ROBUST, **HIT | {"share": 0.3}),
            "global-label:0.1": Robust(aggregation="global-trimmed", epsilon=EPSILON, attack="label", share=0.1),
            "sgd-clean": Robust(),
        }.items()
    ),
)


@pytest.fixture(scope="module", autouse=True)
def small():
    with helpers.small():
        yield SMALL


def of(name):
    return next(setting for setting in SMALL.settings if setting.name == name)


def test_every_attack_meets_every_aggregation_with_equal_promises():
    for name in ("c-mnist", "c-cifar10"):
        experiment = registry.get(name)
        found = {paper_c.kind_of(setting.name) for setting in experiment.settings}
        hit = {(k, a, s) for k in paper_c.AGGREGATORS for a in paper_c.ATTACKS for s in paper_c.SHARES[1:]}
        assert {one for one in found if "@" not in one[0]} == hit | {
            (kind, paper_c.CLEAN, 0.0) for kind in paper_c.AGGREGATORS
        }
        tried = {one for one in found if "@" in one[0]}  # twice and half the rate, of 7 private ones under 2 attacks
        assert len(tried) == 28 and {(attack, share) for _, attack, share in tried} == {
            ("label", 0.2),
            ("gradient-random", 0.2),
        }
        for setting in experiment.settings:
            kind, attack, share = paper_c.kind_of(setting.name)
            assert (setting.robust.attack or paper_c.CLEAN, setting.robust.share) == (attack, share)
            kind, _, rate = kind.partition("@")
            assert setting.learning_rate == float(rate or setting.learning_rate)
            assert setting.robust.epsilon == (None if kind in ("sgd", "robust-sgd") else paper_c.EPSILON)
            assert setting.robust.delta == 1e-5
            assert registry.chosen(experiment, [setting.name]) == (setting,)
        by_kind = {paper_c.kind_of(setting.name)[0]: setting for setting in experiment.settings}
        tau = by_kind["ptr"].robust.release_norm
        assert [by_kind[kind].norm for kind in ("global-tau", "dp-sgd-tau")] == [tau, tau]
        assert (
            by_kind["global"].norm == by_kind["dp-sgd"].norm == by_kind["robust-sgd"].norm == by_kind["ptr"].norm > tau
        )
        rates = {s.learning_rate for s in experiment.settings if paper_c.kind_of(s.name)[0] == "ptr"}
        assert rates == {by_kind["ptr"].learning_rate}


def test_the_plan_is_that_of_the_promise_whatever_the_attack():
    plans = [statement.make_plan(of(name), 200, 2, helpers.tiny("tiny", (8, 8, 1), 2, "none", helpers.data.GENERIC))
             for name in ("ptr-clean", "ptr-gradient-random:0.3", "global-label:0.1", "sgd-clean")]  # fmt: skip
    assert plans[0] == plans[1] and plans[0].aggregation.name == "trimmed"
    for plan in plans[:3:2]:
        assert 0.99 * EPSILON <= plan.epsilon(1e-5) <= EPSILON
    assert plans[2].aggregation.trim == 0 and plans[3].noise_multiplier == 0
    stated = statement.state(
        of("ptr-clean"), 200, 2, 1e-5, helpers.tiny("tiny", (8, 8, 1), 2, "none", helpers.data.GENERIC)
    )
    assert stated["trim"] == plans[0].aggregation.trim and stated["contributions"] == 100


def test_results_of_papers_a_and_b_are_found_as_before():
    assert "robust" not in helpers.BASE.config() and "robust" in BASE.config() | of("ptr-clean").config()


def test_the_attack_hits_its_share_of_the_training_set_alone():
    split = training.load(BASE)
    kind, given = training._attack(of("global-label:0.1"), split, 3)
    assert kind is PrivateModel and given.sample_weight is None and (given.y != split.train[1]).sum() == 20
    kind, given = training._attack(of("ptr-gradient-random:0.3"), split, 3)
    assert kind.func is AttackedModel and kind.keywords == {
        "attack": "gradient-random",
        "attack_options": {"scale": 1e3},
    }
    assert (given.sample_weight < 0).sum() == 60 and (given.y == split.train[1]).all()
    np.testing.assert_array_equal(given.chosen, training._attack(of("ptr-gradient-random:0.3"), split, 3)[1].chosen)
    assert training._attack(of("ptr-clean"), split, 3)[0] is PrivateModel


def test_trained_and_shown(tmp_path):
    """One epoch under attack; the other rows are written, not trained."""
    scale, results = runner.Scale(epochs=1, seeds=1), Results(tmp_path)
    hit = of("ptr-gradient-random:0.1")
    assert runner.run(SMALL, [hit], scale, results) == {}
    (row,) = results.rows()
    assert 0 <= row["history"][0]["test_failures"] <= 1
    for name in ("ptr-clean", "ptr-gradient-random:0.3"):
        history = [{"epoch": 1, "accuracy": 80.0, "loss": 1.0, "test_failures": 0.5}]
        results.add(scale.run(of(name), 0), history, num_private=200)
    rows = runner.summarise(SMALL, SMALL.settings, scale, results, 1e-5)
    text = robust_tables.text(SMALL, rows, {}, 1e-5)
    line = next(line for line in text.splitlines() if line.startswith("ptr-clean"))
    assert "80.00 %" in line and "50.0 %" in line
    assert "Not trained: 2 of 5 settings" in text and "the outcome of every test" in text
    # suggest makes F for a hundredth of failures, with a round's worst corruption.
    assert 0.005 < robust_tables.planned_failures(rows[0]) <= 0.01
    found = robust_tables.pictures(rows)
    assert list(found) == ["gradient-random.svg"] and b"<svg" in found["gradient-random.svg"]
    json.dumps(rows)


def test_accounting_figures():
    rows = ptr_curves.table(1e-5, rounds=(10, 100))
    for row in rows:
        assert row["pld"] <= row["rdp"] <= row["black_box"] and row["lower_bound"] <= row["rdp"] * (1 + 1e-9)
        assert row["advanced_composition"] > row["black_box"]
    text = robust_tables.accounting_text(registry.get("c-accounting"), rows, 1e-5)
    assert "direct analysis" in text and len(text.splitlines()) == 2 + 1 + 4 + 1
    assert len(robust_tables.accounting_pictures(rows)) == 4
