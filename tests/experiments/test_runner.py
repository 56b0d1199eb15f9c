"""Trainings of an experiment: done once, resumed where they stopped, refused where they cannot be."""

import dataclasses
import json

import keras
import numpy as np
import pytest

from tests.experiments import helpers
from tfdpbc.errors import DataError, RunFolderError
from tfdpbc.experiments import runner, statement, training
from tfdpbc.experiments.results import Results
from tfdpbc.random import Streams

PRIVATE = helpers.SIGMAS[1:]
SCALE = runner.Scale(epochs=2)


@pytest.fixture(scope="module", autouse=True)
def small():
    with helpers.small() as experiment:
        yield experiment


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory):
    """The history of a training that nothing interrupted."""
    results = Results(tmp_path_factory.mktemp("whole"))
    assert runner.run(small, PRIVATE, SCALE, results) == {}
    (row,) = results.rows()
    assert row["num_private"] == 180 and not (results.folder / "unfinished").exists()
    return row["history"]


def test_a_training_that_is_cut_goes_on_where_it_was(small, whole, tmp_path):
    """The second epoch is run in a second call: the same seed gives what one call gives."""
    results, told = Results(tmp_path), []

    def cut(line):
        told.append(line)
        if len(told) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run(small, PRIVATE, SCALE, results, tell=cut)
    assert results.rows() == [] and len(list((tmp_path / "unfinished").iterdir())) == 2
    runner.run(small, PRIVATE, SCALE, results, tell=cut)
    assert ["epoch 1/2" in told[0], "epoch 2/2" in told[1], len(told)] == [True, True, 2]
    (row,) = results.rows()
    assert [one["epoch"] for one in row["history"]] == [1, 2]
    np.testing.assert_allclose(
        [one["loss"] for one in row["history"]], [one["loss"] for one in whole], rtol=1e-3
    )  # sums may be ordered otherwise
    assert not (tmp_path / "unfinished").exists()


def test_no_privacy_is_plain_keras(small, tmp_path):
    """Two epochs equal Keras's own steps on the same batches."""
    (setting,) = (s for s in small.settings if not s.private)
    setting = dataclasses.replace(setting, augment=False)
    split = training.load(setting)
    seen = []
    history = training.train(setting, split, 2, 3, tmp_path / "none", seen.append)
    assert seen == history and list(tmp_path.iterdir()) == []

    net = statement.build(setting, (8, 8, 1), 2, 3)
    net.compile(
        keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([8], [0.025, 0.0225])),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    for epoch in (0, 1):
        order = Streams(3).generator("sampling", epoch).permutation(180)
        for start in range(0, 180, 20):
            chosen = order[start : start + 20]
            net.train_on_batch(split.train[0][chosen], split.train[1][chosen])
        loss, accuracy = net.evaluate(*split.test, verbose=0)
        row = {"epoch": epoch + 1, "accuracy": pytest.approx(100 * accuracy), "loss": pytest.approx(loss, rel=1e-4)}
        assert history[epoch] == row
    assert len(history) == 2


def test_plain_batches_are_whole_shuffled_and_augmented_anew():
    x, y = np.random.default_rng(0).random((50, 8, 8, 1), np.float32), np.arange(50)
    batches = training._Batches(x, y, 16, training._augmentation(helpers.BASE), Streams(0))
    assert len(batches) == 3
    first = [batches[i] for i in range(3)]
    assert all(image.shape == (16, 8, 8, 1) for image, _ in first)
    labels = np.concatenate([label for _, label in first])
    assert len(set(labels)) == 48
    np.testing.assert_array_equal(first[1][0], batches[1][0])  # a batch that is read again is the same
    assert not np.allclose(first[0][0], x[labels[:16]])
    batches.draw(1)
    assert not np.array_equal(batches[0][1], first[0][1])


def test_the_step_shrinks_after_each_epoch():
    step = training.sgd(helpers.BASE, 10).learning_rate
    optimizer = training.sgd(helpers.BASE, 10)
    found = []
    for iteration in (0, 9, 10, 25):
        optimizer.iterations.assign(iteration)
        found.append(float(optimizer.learning_rate))
    assert found == pytest.approx([0.025, 0.025, 0.025 * 0.9, 0.025 * 0.81], rel=1e-6) and float(step) > 0


@pytest.mark.slow
def test_what_is_done_is_not_done_again(small, tmp_path, monkeypatch):
    calls = []

    def fake(setting, split, epochs, seed, partial, tell):
        calls.append((setting.name, seed, epochs))
        return [{"epoch": 1, "accuracy": 50.0 + 10 * seed, "loss": 1.0}]

    monkeypatch.setattr(training, "train", fake)
    results = Results(tmp_path)
    runner.run(small, small.settings, runner.Scale(epochs=1, seeds=1), results)
    assert calls == [("sigma=0.5", 0, 1), ("sigma=2.5", 0, 1), ("no-dp", 0, 1)]
    runner.run(small, small.settings, runner.Scale(epochs=1, seeds=2), results)
    assert calls[3:] == [("sigma=0.5", 1, 1), ("sigma=2.5", 1, 1), ("no-dp", 1, 1)]
    runner.run(small, PRIVATE, runner.Scale(epochs=2, seeds=1), results)  # another scale is another training
    assert calls[6:] == [("sigma=2.5", 0, 2)]
    row = runner.summarise(small, PRIVATE, runner.Scale(epochs=1, seeds=2), results, 1e-5)[0]
    assert row["accuracy"] == {"mean": 55.0, "std": pytest.approx(50**0.5)} and row["seeds"] == 2
    assert row["run"]["epochs"] == 1 and row["paper_scale"]["epochs"] == 50
    assert row["run"]["epsilon"] < row["paper_scale"]["epsilon"]
    json.dumps(row)


def test_settings_that_cannot_be_trained_do_not_stop_the_others(small, tmp_path, monkeypatch):
    large = dataclasses.replace(PRIVATE[0], name="large", batch_size=500)
    original, tried = training.train, []

    def spy(setting, *rest):
        tried.append(setting.name)
        if setting.name == "large":
            return original(setting, *rest)
        return [{"epoch": 1, "accuracy": 50.0, "loss": 1.0}]

    monkeypatch.setattr(training, "train", spy)
    results = Results(tmp_path)
    refused = runner.run(small, (large, *PRIVATE), runner.Scale(epochs=1, seeds=2), results)
    assert list(refused) == ["large"] and "num_examples" in refused["large"]
    assert tried == ["large", "sigma=2.5", "sigma=2.5"]
    with pytest.raises(ValueError, match="num_examples"):
        runner.run(small, (large,), SCALE, results)


def test_data_that_leaves_nothing_public_is_refused():
    with pytest.raises(DataError, match="must leave a private and a public one; got 3"):
        training.load(helpers.BASE, examples=3)
    split = training.load(helpers.BASE, examples=50)
    assert (split.num_private, len(split.public[1]), len(split.test[1])) == (45, 5, 60)
    everything = training.load(dataclasses.replace(helpers.BASE, public_share=0.0), examples=50)
    assert (everything.num_private, len(everything.public[1])) == (50, 0)


def test_a_damaged_checkpoint_is_named(small, tmp_path):
    results = Results(tmp_path)

    def cut(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run(small, PRIVATE, SCALE, results, tell=cut)
    (history,) = (tmp_path / "unfinished").glob("*.json")
    history.write_text("{")
    with pytest.raises(RunFolderError, match="is damaged: remove it to begin anew"):
        runner.run(small, PRIVATE, SCALE, results)
