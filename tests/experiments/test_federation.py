"""The study of many clients: run once, stated with what each client spent, the slow client seen in the rates."""

import dataclasses
import json

import keras
import pytest
from click.testing import CliRunner

from tests.experiments import helpers
from tfdpbc import data, models
from tfdpbc.cli.reproduce import reproduce
from tfdpbc.errors import DataError
from tfdpbc.experiments import federation, many, registry
from tfdpbc.experiments.results import Results
from tfdpbc.experiments.runner import Scale
from tfdpbc.experiments.setting import Experiment

BASE = many.ManySetting(
    name="2-iid-async", clients=2, split="iid", synchronous=False, dataset="stripes", model="two", rounds_per_epoch=4
)
SETTINGS = (BASE, dataclasses.replace(BASE, name="2-iid-sync", synchronous=True))
EXPERIMENT = Experiment(name=many.NAME, paper="A", title="t", where="w", claim="c", settings=SETTINGS)
SCALE = Scale(epochs=1, examples=100, seeds=1)


def two(name, input_shape, num_classes, seed=None):
    start = keras.initializers.GlorotUniform(seed)
    layers = [keras.layers.AveragePooling2D(4), keras.layers.Flatten()]
    return keras.Sequential(
        [keras.Input(input_shape), *layers, keras.layers.Dense(num_classes, kernel_initializer=start)]
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federated")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", helpers.stripes)
        patch.setattr(models, "build", two)
        patch.setitem(registry._EXPERIMENTS, many.NAME, EXPERIMENT)
        results, told = Results(folder), []
        federation.run(SETTINGS, SCALE, results, tell=told.append)
        first = len(told)
        federation.run(SETTINGS, SCALE, results, tell=told.append)  # all is there already
        assert 0 < first == len(told)
        with pytest.raises(DataError, match="clients"):
            federation.run(SETTINGS, Scale(1, 6, 1), results)
        options = ["--epochs", "1", "--examples", "100", "--out", str(folder), "--json"]
        said = CliRunner().invoke(reproduce, [many.NAME, *options])
        yield federation.summarise(SETTINGS, SCALE, results), json.loads(said.stdout), folder


def test_rows(found):
    rows, said, folder = found
    assert [row["setting"] for row in said["rows"]] == [one.name for one in SETTINGS]
    fast, slow = rows
    for row, setting in zip(rows, SETTINGS, strict=True):
        assert row["updates"] == 8 and row["examples_per_client"] == 50
        assert 0.9 * setting.epsilon <= row["epsilon"] <= setting.epsilon
        assert row["by_update"][-1] == (8, row["accuracy"]["mean"]) and row["by_time"][-1][0] == row["last"]
    assert fast["rate"] > 0.9 and slow["rate"] < 0.3
    assert sorted(path.name for path in folder.glob("*.svg")) == [
        "2-clients-by-time.svg",
        "2-clients-by-update.svg",
    ]


def test_the_table_says_what_it_is_about(found):
    text = federation.text(EXPERIMENT, found[0])
    assert "2-iid-async" in text and "rate of the others" in text and "add/remove" in text


def test_what_is_declared():
    names = [one.name for one in many.EXPERIMENT.settings]
    assert {f"{k}-{s}-{m}" for k in (5, 50) for s in ("iid", "label") for m in ("async", "sync")} < set(names)
    assert len({(one.epsilon, one.delta, one.epochs) for one in many.EXPERIMENT.settings}) == 1
    with pytest.raises(DataError, match="at least"):
        parts = {"train": helpers.stripes("stripes"), "test": helpers.stripes("stripes", split="test")}
        federation.simulate(BASE, parts, {"seed": 0, "examples": 7, "epochs": 1}, print)
