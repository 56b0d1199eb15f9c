"""One training run, from its options or its run folder to the files it leaves. Heavy: imported when a run starts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import keras
import numpy as np

from tfdpbc import _validate, data, models
from tfdpbc.algorithms import BatchGradient, LocalOptimizer
from tfdpbc.callbacks import PrivacyMeter
from tfdpbc.cli import defaults, options
from tfdpbc.cli.recorder import Recorder
from tfdpbc.data import corruption
from tfdpbc.data.corruption import Attack
from tfdpbc.errors import DataError, RunFolderError
from tfdpbc.keras_model import PrivateModel
from tfdpbc.plan import PrivacyPlan
from tfdpbc.random import Streams
from tfdpbc.reporting.report import write_report
from tfdpbc.reporting.run_folder import RunFolder

# The options of a run that are neither part of the plan nor of this call.
SETTINGS = (
    "dataset",
    "data_dir",
    "examples",
    "model",
    "activation",
    "normalization",
    "statistics",
    "public_share",
    "augment",
    "augmentations",
    "averaging",
    "delta",
    "algorithm",
    "local_learning_rate",
    "passes",
    "minibatch_size",
    "learning_rate",
    "learning_rate_decay",
    "momentum",
    "engine",
    "physical_batch_size",
    "attack",
    "seed",
)
_FEATURES_AT_ONCE = 250
# The augmentation of paper B. Its last step, standardising, is a layer of the model: it also applies at evaluation.
AUGMENTS = {"none": None, "paper": data.Augmentation(pad=4, flip=True, margin="zeros")}


class Job:
    """A run that passed every check: data loaded, plan made, model compiled; nothing written yet.

    Args:
      config: what `config.json` holds: `SETTINGS`, `num_examples` and `plan`.
      plan: the plan of `config`.
      train, test: the data sets.
      public: the part of the training set that was held out as public, or None.
      path: where the run folder is or shall be.
    """

    def __init__(self, config: Mapping[str, Any], plan: PrivacyPlan, train: Any, test: Any, public: Any, path: Path):
        self.config, self.plan, self.train, self.test, self.path = config, plan, train, test, path
        self.public = public
        for part in (train, test):
            data.check_labels(part.y, train.num_classes)
        self.front, self.model = _compiled(config, plan, train)
        self.folder: RunFolder | None = None

    @classmethod
    def start(cls, given: Mapping[str, Any], path: Path) -> Job:
        """A new run with the options of the command line."""
        if given["norm_estimates"] == "public":
            raise click.UsageError("--norm-estimates public needs public data, which only PrivateModel.fit takes")
        train, test, public = _load(given)
        plan = options.make_plan(given, len(train.y))
        plan.epsilon(given["delta"])  # warns of a delta that is too large
        config = {name: given[name] for name in SETTINGS}
        return cls(config | {"num_examples": len(train.y), "plan": plan.to_config()}, plan, train, test, public, path)

    @classmethod
    def resume(cls, folder: RunFolder) -> Job:
        """The run of a folder, at the last checkpoint."""
        config = {name: value for name, value in folder.config.items() if name != "format"}
        if set(config) != {*SETTINGS, "num_examples", "plan"}:
            raise RunFolderError(f"{folder.path / 'config.json'} is damaged: entries are missing or unknown")
        try:
            plan = PrivacyPlan.from_config(config["plan"])
            train, test, public = _load(config)
            if len(train.y) != config["num_examples"]:
                raise RunFolderError(
                    f"the data has {len(train.y)} examples now, {config['num_examples']} when it began"
                )
            job = cls(config, plan, train, test, public, folder.path)
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(f"{folder.path / 'config.json'} does not describe a run: {error}") from error
        job.folder = folder
        job.model.load_checkpoint(folder.checkpoint)
        return job

    def describe(self) -> str:
        """What is about to happen, in one line."""
        plan, done = self.plan, self.model.spent.rounds
        after = f", going on after round {done}" if done else ""
        return (
            f"{self.config['model']} ({self.model.model.count_params():,} weights) on {self.config['dataset']} "
            f"({len(self.train.y):,} examples): {plan.epochs} epochs of {plan.rounds_per_epoch} rounds{after}, "
            f"noise multiplier {plan.noise_multiplier:.4g}"
            + (f"; {len(self.public.y):,} more examples are taken as public" if self.public else "")
        )

    def run(self, verbose: int) -> None:
        """Trains to the end of the plan and writes the run folder."""
        if self.model.spent.rounds < self.plan.rounds:
            self._fit(verbose)
        facts = {"delta": self.config["delta"], "dataset": self.config["dataset"]}
        averaged = self.config["averaging"] is not None
        self.model.export(self.folder.model, averaged=averaged, front=self.front, **facts)
        write_report(self.folder)

    def _fit(self, verbose: int) -> None:
        delta, train = self.config["delta"], _attacked(self.config, self.train)
        recorder = Recorder(self.path, self.config, delta, self.folder)
        try:
            self.model.fit(
                self._seen(train.x),
                train.y,
                validation_data=(self._seen(self.test.scaled()), self.test.y),
                callbacks=[PrivacyMeter(delta=delta), recorder],
                verbose=verbose,
                public_data=self.public and self._seen(self.public.scaled()),
                sample_weight=train.sample_weight,
            )
        except KeyboardInterrupt:
            if recorder.folder is None:
                raise
            raise RunFolderError(f"interrupted; go on with: tfdpbc train --resume {self.path}") from None
        self.folder = recorder.folder

    def _seen(self, x: Any) -> Any:
        """What the trained model is given for the images `x`: they themselves, or their fixed features, computed once here."""
        if self.front is None:
            return x
        # Half precision halves the memory (50,000 CIFAR images: 1.6 GB); these features are of the order of one.
        parts = [self.front.predict_on_batch(x[i : i + _FEATURES_AT_ONCE]) for i in range(0, len(x), _FEATURES_AT_ONCE)]
        return np.concatenate([part.astype(np.float16) for part in parts])

    def summary(self) -> dict[str, Any]:
        """The result of the run as the object that `--json` prints."""
        last = self.folder.read_history()[-1]
        guarantee = self.folder.read_guarantee()
        return {
            "run": str(self.path),
            "accuracy": last.get("val_accuracy"),
            "loss": last.get("val_loss"),
            "epsilon": guarantee["epsilon"],
            "delta": guarantee["delta"],
            "guarantee": guarantee,
        }

    def words(self) -> str:
        """The result of the run for reading."""
        summary = self.summary()
        return "\n".join(
            [
                f"Test accuracy {summary['accuracy']:.4f}, loss {summary['loss']:.4f}.",
                self.model.spent.describe(self.config["delta"]),
                f"Run folder: {self.path} (model/ is the SavedModel, report.html for reading)",
            ]
        )


def _load(config: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """The training set (cut to `examples`, less what is public), the whole test set, and the public part or None."""
    name, data_dir, share = config["dataset"], config["data_dir"], config["public_share"]
    train = data.load(name, data_dir=data_dir, split="train", limit=config["examples"])
    public = None
    if share is not None:
        held_out, private = round(share * len(train.y)), len(train.y) - round(share * len(train.y))
        if held_out < 2 or private < 1:
            raise DataError(
                f"public_share must leave at least 2 public examples and a private one of {len(train.y)}; got "
                f"public_share={share!r}"
            )
        # The order of a data set is random already.
        public = dataclasses.replace(train, x=train.x[private:], y=train.y[private:])
        train = dataclasses.replace(train, x=train.x[:private], y=train.y[:private])
    return train, data.load(name, data_dir=data_dir, split="test"), public


def _attacked(config: Mapping[str, Any], train: Any) -> corruption.Corrupted:
    """The training set after the attack, if there is one."""
    if config["attack"] is None:
        return corruption.Corrupted(train.scaled(), train.y, None)
    attack, seed = Attack.parse(config["attack"]), config["seed"] or 0
    return corruption.attacked(train.scaled(), train.y, attack, train.num_classes, seed)


def algorithm(config: Mapping[str, Any]) -> Any:
    """The inner algorithm that the options name."""
    if config["algorithm"] == "batch-gradient":
        return BatchGradient()
    given = {
        "learning_rate": (config["local_learning_rate"], defaults.LOCAL_LEARNING_RATE),
        "passes": (config["passes"], defaults.PASSES),
        "minibatch_size": (config["minibatch_size"], defaults.MINIBATCH_SIZE),
    }
    chosen = {name: default if value is None else value for name, (value, default) in given.items()}
    return LocalOptimizer(config["algorithm"].removeprefix("local-"), **chosen)


def _compiled(config: Mapping[str, Any], plan: PrivacyPlan, train: Any) -> tuple[Any, PrivateModel]:
    """(front, model) of a run, ready to fit: the fixed front that its examples pass once, or None where there is none."""
    seed, chosen = config["seed"], ("activation", "normalization")
    wished = {name: config[name] for name in chosen if config[name] is not None}
    augment = AUGMENTS[config["augment"]]
    if augment is not None:
        wished["standardize"] = data.NORMALIZATION.get(train.name, data.GENERIC)
    if seed is not None:
        wished["seed"] = int(Streams(seed).generator("init").integers(2**31))
    kind, attack = PrivateModel, config["attack"] and Attack.parse(config["attack"]).kind
    if attack in corruption.GRADIENT_ATTACKS:
        from tfdpbc.attacked_model import AttackedModel

        kind = functools.partial(AttackedModel, attack=attack)
    network, front = models.build(config["model"], train.x.shape[1:], train.num_classes, **wished), None
    parts = models.fixed_features(network)
    if parts is not None and augment is None:  # images that change have no features to keep
        front, network = parts
    model = kind(
        network,
        plan,
        algorithm=algorithm(config),
        engine=config["engine"],
        statistics=config["statistics"],
        seed=seed,
        physical_batch_size=config["physical_batch_size"],
        augment=augment,
        augmentations=config["augmentations"],
        averaging=config["averaging"],
    )
    rate = _validate.number("learning_rate", config["learning_rate"], above=0)
    decay = _validate.number("learning_rate_decay", config["learning_rate_decay"], above=0, at_most=1)
    if decay < 1:
        rate = keras.optimizers.schedules.ExponentialDecay(rate, plan.rounds_per_epoch, decay, staircase=True)
    momentum = _validate.number("momentum", config["momentum"], at_least=0, below=1)
    model.compile(
        optimizer=keras.optimizers.SGD(rate, momentum=momentum),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return front, model
