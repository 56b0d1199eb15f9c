"""Runs an experiment: every setting with every seed, what is finished already left out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from tfdpbc import guarantee
from tfdpbc.errors import TfdpbcError
from tfdpbc.experiments import statement, training
from tfdpbc.experiments.results import Results
from tfdpbc.experiments.setting import Experiment, Setting


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much of an experiment is run.

    Attributes:
      epochs: None for those of the paper.
      examples: of the training set; None for all.
      seeds: how many seeds, 0, 1, ...
    """

    epochs: int | None = None
    examples: int | None = None
    seeds: int = 1

    def run(self, setting: Setting, seed: int) -> dict[str, Any]:
        """All that a training depends on: what its result is found by."""
        epochs = self.epochs or setting.epochs
        return {"config": setting.config(), "epochs": epochs, "examples": self.examples, "seed": seed}


def run(
    experiment: Experiment,
    settings: Sequence[Setting],
    scale: Scale,
    results: Results,
    data_dir: Any = None,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, str]:
    """Trains what is missing in `results`.

    Args:
      tell: is called with a line of progress after each epoch.

    Returns:
      Why settings could not be trained at this scale, by their names.

    Raises:
      TfdpbcError, ValueError: the only setting, or all of them, could not be trained.
    """
    loaded: tuple[Any, Any] = (None, None)
    refused: dict[str, str] = {}
    for setting in settings:
        for seed in range(scale.seeds):
            wanted = scale.run(setting, seed)
            if results.find(wanted) is not None:
                continue
            key = setting.dataset, setting.public_share
            if loaded[0] != key:
                loaded = key, training.load(setting, data_dir, scale.examples)
            try:
                _train(experiment, setting, wanted, loaded[1], results, tell)
            except (TfdpbcError, ValueError) as error:  # the other settings may do
                refused[setting.name] = str(error)
                if len(refused) == len(settings):
                    raise
                break
    return refused


def _train(
    experiment: Experiment,
    setting: Setting,
    wanted: dict[str, Any],
    split: training.Split,
    results: Results,
    tell: Callable[[str], None],
) -> None:
    start, epochs, seed = time.monotonic(), wanted["epochs"], wanted["seed"]

    def one(row: dict[str, float]) -> None:
        tell(
            f"{experiment.name} {setting.name} seed {seed}: epoch {row['epoch']}/{epochs}, test accuracy "
            f"{row['accuracy']:.2f} % ({time.monotonic() - start:.0f} s)"
        )

    # A name made of the run, so that trainings of other scales in the same folder are never taken for it.
    digest = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:16]
    history = training.train(setting, split, epochs, seed, results.folder / "unfinished" / digest, one)
    seconds = time.monotonic() - start
    results.add(
        wanted,
        history,
        experiment=experiment.name,
        setting=setting.name,
        num_private=split.num_private,
        seconds=seconds,
        versions=guarantee.versions(),
    )
    keras.utils.clear_session(free_memory=True)  # a sweep makes many models


def summarise(
    experiment: Experiment, settings: Sequence[Setting], scale: Scale, results: Results, delta: float
) -> list[dict[str, Any]]:
    """A JSON-able row for each setting: claimed, got, and its privacy at the paper's scale and at that of the run.

    `accuracy` holds mean and standard deviation (over the seeds; None of one seed) of the last epoch's test accuracy in
    percent, `best` the same of the best epoch's (chosen on the test set: not to be quoted as a result), `by_epoch` the
    means. Settings that were not trained have no `accuracy`.
    """
    done = {json.dumps(row["run"], sort_keys=True): row for row in results.rows()}
    known: dict[str, dict[str, Any]] = {}  # what is stated of equal settings is stated once
    rows = []
    for setting in settings:
        config = json.dumps([setting.config(), setting.epochs])
        if config not in known:
            known[config] = statement.state_of_paper(setting, delta)
        row: dict[str, Any] = {
            "setting": setting.name,
            "claimed": list(setting.claimed),
            "claimed_words": setting.claim,
            "claimed_mu": setting.claimed_mu,
            "config": setting.config(),
            "paper_scale": known[config],
            "note": setting.note,
        }
        wanted = (json.dumps(scale.run(setting, seed), sort_keys=True) for seed in range(scale.seeds))
        found = [done[key] for key in wanted if key in done]
        if found:
            row |= _measured(found)
            row["run"] = _stated(setting, scale, found[0]["num_private"], delta)
        rows.append(row)
    return rows


def _measured(found: list[dict[str, Any]]) -> dict[str, Any]:
    epochs = [one["epoch"] for one in found[0]["history"]]
    # A loss that diverged is null in JSON; an accuracy is always there.
    accuracy = np.array([[one["accuracy"] for one in result["history"]] for result in found])
    return {
        "seeds": len(found),
        "epochs": len(epochs),
        "accuracy": _spread(accuracy[:, -1]),
        "best": _spread(accuracy.max(axis=1)),
        "by_epoch": list(zip(epochs, accuracy.mean(axis=0).tolist(), strict=True)),
        "test_failures": _failures(found),
        "seconds": [result.get("seconds") for result in found],
    }


def _failures(found: list[dict[str, Any]]) -> float | None:
    """The share of rounds whose test failed, over all seeds; None where rounds are not tested."""
    shares = [result["history"][-1].get("test_failures") for result in found]
    return None if None in shares else float(np.mean(shares))


def _spread(values: np.ndarray) -> dict[str, float | None]:
    return {"mean": float(values.mean()), "std": float(values.std(ddof=1)) if len(values) > 1 else None}


def _stated(setting: Setting, scale: Scale, num_private: int, delta: float) -> dict[str, Any]:
    net = statement.build(setting, statement.SHAPES[setting.dataset], 10)
    return statement.state(setting, num_private, scale.epochs or setting.epochs, delta, net)
