"""`tfdpbc train` and `evaluate` from end to end, on a small data set: the files they leave, resuming, and bad input."""

import csv
import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdpbc import data
from tfdpbc.errors import DataError
from tfdpbc.export import load_exported
from tfdpbc.reporting.run_folder import RunFolder

KEYS = {  # of guarantee.json, a contract with scripts outside this repository
    *("sampling", "neighbouring", "adversary", "noise_multiplier", "rounds", "delta", "epsilon", "mu", "group_size"),
    *("covers", "versions"),
}
SIZE = {"train": 200, "test": 60}


@dataclasses.dataclass(frozen=True)
class Stripes:
    """10 x 10 images of which the brighter half tells the class."""

    x: np.ndarray
    y: np.ndarray
    num_classes: int = 2
    name: str = "stripes"

    def scaled(self):
        return self.x.astype(np.float32) / 255 - 0.5


def stripes(name, data_dir=None, split="train", limit=None):
    if name != "stripes":
        raise DataError(f"data set {name!r} is unknown")
    rng = np.random.default_rng(len(split))
    y = rng.integers(2, size=SIZE[split])
    x = rng.integers(0, 120, size=(SIZE[split], 10, 10, 1))
    x[np.arange(len(y)), :, :5] += 120 * y[:, None, None, None]
    if data_dir == "mislabelled":
        y[3] = 7
    return Stripes(x[:limit].astype(np.uint8), y[:limit])


@pytest.fixture(autouse=True, scope="module")
def small_data():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", stripes)
        yield


PLAN = ("--batch-size", 50, "--noise-multiplier", 1, "--norm", 1)
TRAIN = ("train", "--dataset", "stripes", "--model", "mlp", "--learning-rate", 0.2, *PLAN)


@pytest.fixture(scope="module")
def once(answer, tmp_path_factory, small_data):
    out = tmp_path_factory.mktemp("runs") / "one"
    return out, answer(*TRAIN, "--epochs", 2, "--out", out, "--seed", 3)


@pytest.fixture
def trained(once, tmp_path):
    """(run folder, what `train --json` said), the folder a copy that a test may damage."""
    out, result = once
    return shutil.copytree(out, tmp_path / "copy"), result


def test_run_folder_is_complete_and_consistent(trained):
    out, result = trained
    names = ["checkpoints", "config.json", "guarantee.json", "history.csv", "model", "report.html", "trade_off.csv"]
    assert sorted(path.name for path in out.iterdir()) == names
    rows = list(csv.DictReader((out / "history.csv").open()))
    assert [float(row["epoch"]) for row in rows] == [1, 2]
    assert {"accuracy", "loss", "val_accuracy", "val_loss", "epsilon"} < set(rows[0])
    guarantee = json.loads((out / "guarantee.json").read_text())
    assert set(guarantee) >= KEYS
    assert guarantee["rounds"] == 8 and guarantee["sampling"] == "poisson" and guarantee["neighbouring"] == "add-remove"
    assert float(rows[-1]["epsilon"]) == guarantee["epsilon"] == result["epsilon"] > float(rows[0]["epsilon"]) > 0
    assert result["accuracy"] == float(rows[-1]["val_accuracy"])
    assert json.loads((out / "config.json").read_text())["seed"] == 3


def test_guarantee_is_the_one_that_account_states(trained, answer):
    _, result = trained
    stated = answer("account", "--num-examples", 200, "--epochs", 2, *PLAN)
    assert stated["epsilon"] == result["epsilon"]


def test_evaluate_agrees_with_the_training(trained, answer, run):
    out, result = trained
    for saved_model in (out, out / "model"):
        got = answer("evaluate", "--saved-model", saved_model, "--dataset", "stripes")
        assert got["accuracy"] == pytest.approx(result["accuracy"], abs=1e-6)
        assert got["loss"] == pytest.approx(result["loss"], rel=1e-4)
        assert got["guarantee"] == result["guarantee"] == json.loads((out / "guarantee.json").read_text())
    words = run("evaluate", "--saved-model", out, "--dataset", "stripes", "--examples", 10)
    assert "on 10 examples of stripes (test)" in words.stdout and "-differential privacy" in words.stdout


def test_pitfall_21_saved_model_needs_tensorflow_alone(trained):
    """pitfall 21"""
    out, result = trained
    model = tf.saved_model.load(str(out / "model"))
    test = stripes("stripes", split="test")
    outputs = model.signatures["serve"](tf.constant(test.scaled()))
    (logits,) = outputs.values()
    assert np.mean(logits.numpy().argmax(axis=1) == test.y) == pytest.approx(result["accuracy"], abs=1e-6)


def test_a_seed_makes_a_run_repeatable(trained, answer, tmp_path):
    _, first = trained
    again = answer(*TRAIN, "--epochs", 2, "--seed", 3, "--out", tmp_path / "again")
    assert again["loss"] == pytest.approx(first["loss"], rel=1e-5)


def test_words_and_another_seed(trained, run, tmp_path):
    _, first = trained
    result = run(*TRAIN, "--epochs", 2, "--seed", 4, "--out", tmp_path / "one")
    assert result.exit_code == 0, result.stderr
    assert RunFolder(tmp_path / "one").read_history()[-1]["val_loss"] != first["loss"]
    for words in ("Test accuracy", "δ = 1e-05", "one example more than the other", "Adversary: ", "report.html"):
        assert words in result.stdout
    assert "training loss" in result.stdout  # pitfall 22: said not to be covered


def test_default_is_calibrated_and_lies_under_runs(answer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = answer("train", "--dataset", "stripes", "--model", "mlp", "--batch-size", 100, "--epochs", 1)
    assert 2.97 <= result["epsilon"] <= 3
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("stripes-") and str(folder.relative_to(tmp_path)) == result["run"]


class Stop(keras.callbacks.Callback):
    """What an impatient user does at the end of the first epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


def interrupt(monkeypatch):
    from tfdpbc.cli import job

    class Meter(job.PrivacyMeter):
        on_epoch_begin = Stop.on_epoch_begin

    monkeypatch.setattr(job, "PrivacyMeter", Meter)


def test_pitfall_14_resume_counts_all_rounds(trained, run, answer, tmp_path, monkeypatch):
    """pitfall 14: an interrupted and resumed run ends where an uninterrupted one ends."""
    _, whole = trained
    out = tmp_path / "two"
    with monkeypatch.context() as patch:
        interrupt(patch)
        stopped = run(*TRAIN, "--epochs", 2, "--seed", 3, "--out", out)
    assert stopped.exit_code == 1
    assert stopped.stderr.splitlines()[-1] == f"Error: interrupted; go on with: tfdpbc train --resume {out}"
    assert RunFolder(out).read_guarantee()["rounds"] == 4
    resumed = answer("train", "--resume", out)
    assert resumed["guarantee"]["rounds"] == 8
    assert resumed["epsilon"] == whole["epsilon"]
    assert resumed["loss"] == pytest.approx(whole["loss"], rel=1e-4)
    assert [row["epoch"] for row in RunFolder(out).read_history()] == [1, 2]


@pytest.mark.slow
def test_augmented_and_averaged_runs(run, answer, tmp_path, monkeypatch):
    """Interrupted and resumed they are the uninterrupted run; what is exported is the average, with its standardising."""
    options = (*TRAIN, "--epochs", 2, "--seed", 3, "--augment", "paper", "--augmentations", 2, "--averaging", 0.9)
    whole = answer(*options, "--out", tmp_path / "one")
    with monkeypatch.context() as patch:
        interrupt(patch)
        assert run(*options, "--out", tmp_path / "two").exit_code == 1
    resumed = answer("train", "--resume", tmp_path / "two")
    assert resumed["loss"] == pytest.approx(whole["loss"], rel=1e-4)
    for out in (tmp_path / "one", tmp_path / "two"):
        got = answer("evaluate", "--saved-model", out, "--dataset", "stripes")
        assert got["loss"] == pytest.approx(whole["loss"], rel=1e-4)
    plain = answer(
        *TRAIN, "--epochs", 2, "--seed", 3, "--augment", "paper", "--augmentations", 2, "--out", tmp_path / "p"
    )
    assert plain["loss"] != pytest.approx(whole["loss"], rel=1e-3) and plain["epsilon"] == whole["epsilon"]


def test_resume_of_a_finished_run_releases_nothing_more(trained, answer):
    out, whole = trained
    (out / "report.html").unlink()
    again = answer("train", "--resume", out)
    assert again["guarantee"]["rounds"] == 8 and again["loss"] == whole["loss"]
    assert (out / "report.html").exists()


def test_resume_takes_no_other_option(trained, run):
    out, _ = trained
    result = run("train", "--resume", out, "--epochs", 9, "--norm", 2)
    assert result.exit_code == 2 and "cannot change --norm, --epochs" in result.stderr


@pytest.mark.parametrize(
    "edit, message",
    [
        (lambda config: config.pop("plan"), "entries are missing or unknown"),
        (lambda config: config.update(plan={"epochs": 2}), "does not describe a run"),
        (lambda config: config.update(learning_rate="fast"), "does not describe a run"),
        (lambda config: config.update(num_examples=199), "the data has 200 examples now"),
        (lambda config: config.update(model="no-such-model"), "no-such-model"),
        (lambda config: config.update(dataset="no-such-data"), "no-such-data"),
    ],
)
def test_resume_refuses_a_damaged_config(trained, refused, edit, message):
    out, _ = trained
    config = json.loads((out / "config.json").read_text())
    edit(config)
    (out / "config.json").write_text(json.dumps(config))
    assert message in refused("train", "--resume", out)


def test_resume_refuses_a_damaged_checkpoint(trained, refused):
    out, _ = trained
    files = [path for path in (out / "checkpoints").rglob("*") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused("train", "--resume", out)


BAD = [
    (("--dataset", "no-such-data"), "no-such-data"),
    (("--data-dir", "mislabelled"), "labels must be whole numbers in 0..1; got 7"),
    (("--batch-size", 500), "batch_size must be"),
    (("--sampling", "shuffling", "--batch-size", 500), "num_examples must be at least one round"),
    (("--examples", 20), "batch_size must be"),
    (("--examples", 0), "examples must be"),
    (("--norm", "nan"), "norm must be a finite number > 0; got norm=nan"),
    (("--noise-multiplier", 0), "noise_multiplier must be a finite number > 0"),
    (("--noise-multiplier", -1), "noise_multiplier must be a finite number > 0"),
    (("--learning-rate", "inf"), "learning_rate must be"),
    (("--momentum", 1), "momentum must be"),
    (("--seed", -1), "seed must be"),
    (("--physical-batch-size", 0), "physical_batch_size must be"),
    (("--activation", "no-such-activation"), "no-such-activation"),
    (("--model", "bn_lenet5"), ""),
    (("--algorithm", "local-sgd", "--passes", 0), "passes must be"),
    (("--algorithm", "local-sgd", "--local-learning-rate", 0), "local_learning_rate must be"),
    (("--augmentations", 2), "augmentations must be 1 without an augment"),
    (("--averaging", 1), "averaging must be"),
]


@pytest.mark.parametrize("args, message", BAD, ids=["-".join(map(str, args)).strip("-") for args, _ in BAD])
def test_bad_input_leaves_nothing_behind(refused, tmp_path, args, message):
    assert message in refused(*TRAIN, "--epochs", 1, *args, "--out", tmp_path / "runs" / "one")
    assert list(tmp_path.iterdir()) == []


def test_epsilon_0_leaves_nothing_behind(refused, tmp_path):
    """pitfall 28: epsilon = 0 is refused, not read as "not set"."""
    line = refused("train", "--dataset", "stripes", "--batch-size", 50, "--epsilon", 0, "--out", tmp_path / "one")
    assert "epsilon must be a finite number > 0; got epsilon=0.0" in line
    assert list(tmp_path.iterdir()) == []


def test_existing_folder_is_left_alone(refused, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "exists already" in refused(*TRAIN, "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_failure_in_training_leaves_nothing_behind(run, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.optimizers.SGD, "apply", lambda *_: 1 / 0)
    result = run(*TRAIN, "--epochs", 1, "--out", tmp_path / "one")
    assert result.exit_code != 0
    assert list(tmp_path.iterdir()) == []


def test_resume_of_nothing(refused, tmp_path):
    assert "does not exist" in refused("train", "--resume", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in refused("train", "--resume", tmp_path / "empty")


def test_evaluate_bad_input(trained, refused, tmp_path):
    out, _ = trained
    assert "nowhere" in refused("evaluate", "--saved-model", tmp_path / "nowhere", "--dataset", "stripes")
    assert "no-such-data" in refused("evaluate", "--saved-model", out, "--dataset", "no-such-data")
    assert "batch_size" in refused("evaluate", "--saved-model", out, "--dataset", "stripes", "--batch-size", 0)
    (out / "model" / "saved_model.pb").write_bytes(b"damaged")
    assert "damaged" in refused("evaluate", "--saved-model", out, "--dataset", "stripes")


def test_a_local_optimizer(answer, tmp_path):
    shape = ("--sampling", "shuffling", "--clip", "batch")
    local = ("--algorithm", "local-nesterov", "--local-learning-rate", 0.05, "--passes", 2, "--minibatch-size", 10)
    got = answer(*TRAIN, *shape, *local, "--epochs", 1, "--out", tmp_path / "one")
    plain = answer("account", "--num-examples", 200, "--epochs", 1, *shape, *PLAN)
    assert got["epsilon"] == plain["epsilon"]  # A costs nothing
    config = RunFolder(tmp_path / "one").config
    assert (config["algorithm"], config["passes"], config["minibatch_size"]) == ("local-nesterov", 2, 10)
    assert answer("train", "--resume", tmp_path / "one")["loss"] == got["loss"]


class TestBatchNormalisation:
    SHAPE = ("--sampling", "shuffling", "--clip", "batch", "--batch-size", 50, "--noise-multiplier", 1)
    TRAIN = ("train", "--dataset", "stripes", "--model", "convnet", "--normalization", "batch", "--epochs", 1, *SHAPE)

    def test_unprotected_statistics_void_the_guarantee(self, answer, tmp_path):
        got = answer(*self.TRAIN, "--statistics", "unprotected", "--out", tmp_path / "one")
        assert got["epsilon"] is None and got["guarantee"]["mu"] is None
        assert "No guarantee" in (tmp_path / "one" / "report.html").read_text()

    def test_private_statistics_are_charged_as_account_says(self, answer, tmp_path):
        chosen = ("--statistics", "private", "--statistics-norm", 0.5, "--statistics-noise-ratio", 2)
        got = answer(*self.TRAIN, *chosen, "--out", tmp_path / "one")
        stated = answer("account", "--num-examples", 200, "--epochs", 1, *self.SHAPE, *chosen)
        assert got["epsilon"] == stated["epsilon"]
        # 4 rounds, each example in one of them: one Gaussian of 1/σ² = 1 + 1/4.
        assert got["guarantee"]["mu"] == pytest.approx(np.sqrt(1.25), rel=1e-12)
        assert "moving statistics" in " ".join(got["guarantee"]["covers"]["covered"])
        promised = answer("calibrate", "--num-examples", 200, "--epochs", 1, *self.SHAPE[:-2], *chosen, "--epsilon", 3)
        assert promised["noise_multiplier"] > 1 and 2.97 <= promised["epsilon"] <= 3

    def test_public_statistics_come_from_the_part_that_is_held_out(self, answer, tmp_path):
        chosen = ("--statistics", "public", "--public-share", 0.5)
        got = answer(*self.TRAIN, *chosen, "--out", tmp_path / "one")
        config = json.loads((tmp_path / "one" / "config.json").read_text())
        assert config["num_examples"] == got["guarantee"]["plan"]["sampling"]["num_examples"] == 100
        assert any("called public" in warning for warning in got["guarantee"]["warnings"])
        loaded = tf.saved_model.load(tmp_path / "one" / "model")
        variances = [v.numpy() for v in loaded.weights if v.name.endswith("moving_variance:0")]
        assert variances and all(np.all(v != 1) for v in variances)
        answer("train", "--resume", tmp_path / "one")

    def test_normalising_by_the_batch(self, answer, tmp_path):
        got = answer(*self.TRAIN, "--statistics", "batch", "--out", tmp_path / "one")
        assert got["guarantee"]["mu"] == pytest.approx(1, rel=1e-12)
        same = answer("evaluate", "--saved-model", tmp_path / "one", "--dataset", "stripes", "--batch-size", 32)
        assert same["accuracy"] == pytest.approx(got["accuracy"], abs=1e-6)  # Keras evaluates 32 at a time

    def test_too_small_a_public_part_is_refused(self, refused, tmp_path):
        chosen = ("--statistics", "public", "--public-share", 0.001, "--out", tmp_path / "one")
        assert "at least 2 public examples" in refused(*self.TRAIN, *chosen)


def test_fixed_features_are_computed_before_training_and_exported_with_it(answer, tmp_path):
    """The SavedModel takes images, and says what training said of the test set."""
    options = (
        "train",
        "--dataset",
        "stripes",
        "--model",
        "scattering_linear",
        "--learning-rate",
        0.2,
        *PLAN,
        "--seed",
        1,
    )
    result = answer(*options, "--epochs", 2, "--out", tmp_path / "run")
    test = stripes("stripes", split="test")
    logits = load_exported(tmp_path / "run" / "model").predict(test.scaled())
    assert np.mean(logits.argmax(1) == test.y) == pytest.approx(result["accuracy"], abs=0.02)
    assert result["accuracy"] > 0.7
