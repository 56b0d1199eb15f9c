"""One training of one setting with one seed: privately under its plan, or with plain Keras."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpbc import data
from tfdpbc.attacked_model import AttackedModel
from tfdpbc.data import corruption
from tfdpbc.errors import DataError, RunFolderError
from tfdpbc.experiments.setting import Setting
from tfdpbc.experiments.statement import build, make_plan
from tfdpbc.keras_model import PrivateModel
from tfdpbc.random import Streams
from tfdpbc.reporting.run_folder import to_json, write_text
from tfdpbc.training.whole_round import FAILURES

ROUNDS_PER_CALL = 16
EVALUATED_AT_ONCE = 1000
Epoch = Callable[[dict[str, float]], None]


@dataclasses.dataclass(frozen=True)
class Split:
    """The data of a setting: images in [0, 1].

    Attributes:
      train, public, test: (x, y); `public` may be empty.
      num_classes: of all.
    """

    train: tuple[np.ndarray, np.ndarray]
    public: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    num_classes: int

    @property
    def num_private(self) -> int:
        return len(self.train[1])


def load(setting: Setting, data_dir: Any = None, examples: int | None = None) -> Split:
    """Loads what a setting is trained on; `examples` takes the first of the training set only.

    Raises:
      DataError: unknown or missing data, or too little of it to hold out the public share.
    """
    train = data.load(setting.dataset, data_dir=data_dir, split="train", limit=examples)
    test = data.load(setting.dataset, data_dir=data_dir, split="test")
    for part in (train, test):
        data.check_labels(part.y, train.num_classes)
    x, private = train.scaled(), setting.num_private(len(train.y))
    if setting.public_share and not 1 <= private < len(train.y):
        raise DataError(f"examples must leave a private and a public one; got {len(train.y)} examples")
    # The order of a data set is random already.
    return Split(
        (x[:private], train.y[:private]), (x[private:], train.y[private:]), (test.scaled(), test.y), train.num_classes
    )


def train(setting: Setting, split: Split, epochs: int, seed: int, partial: Path, tell: Epoch) -> list[dict[str, float]]:
    """Trains a setting to the end.

    Args:
      partial: where a private training keeps its state while it runs, to go on after an interruption; gone at the end.
      tell: is called with the row of each epoch.

    Returns:
      A row for each epoch: `epoch` (from 1), test `accuracy` (in percent) and `loss`; `test_failures`, the share of rounds
      so far whose test failed, where rounds are tested.
    """
    run = _private if setting.private else _plain
    return run(setting, split, epochs, seed, partial, tell)


def sgd(setting: Setting, rounds_per_epoch: int) -> keras.optimizers.Optimizer:
    """The setting's optimizer: its step shrinks after each epoch."""
    rate: Any = setting.learning_rate
    if setting.learning_rate_decay != 1:
        rate = keras.optimizers.schedules.ExponentialDecay(
            rate, rounds_per_epoch, setting.learning_rate_decay, staircase=True
        )
    return keras.optimizers.SGD(rate, momentum=setting.momentum)


def _augmentation(setting: Setting) -> data.Augmentation | None:
    return data.Augmentation(pad=setting.pad, flip=True, margin="zeros") if setting.augment else None


def _compiled(model: keras.Model, optimizer: Any, **options: Any) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"], **options)
    return model


def _private(
    setting: Setting, split: Split, epochs: int, seed: int, partial: Path, tell: Epoch
) -> list[dict[str, float]]:
    net = build(setting, split.train[0].shape[1:], split.num_classes, seed)
    plan = make_plan(setting, split.num_private, epochs, net)
    kind, given = _attack(setting, split, seed)
    model = kind(
        net,
        plan,
        statistics="unprotected" if setting.normalization == "batch" else None,
        seed=seed,
        augment=_augmentation(setting),
    )
    _compiled(model, sgd(setting, plan.rounds_per_epoch), steps_per_execution=ROUNDS_PER_CALL)
    recorder = _Recorder(partial, tell)
    recorder.restore(model)
    if model.spent.rounds < plan.rounds:
        model.fit(
            given.x,
            given.y,
            sample_weight=given.sample_weight,
            validation_data=split.test,
            validation_batch_size=EVALUATED_AT_ONCE,
            public_data=split.public if plan.clipping.needs_public_data else None,
            callbacks=[recorder],
            verbose=0,
        )
    recorder.forget()
    return recorder.rows


def _attack(setting: Setting, split: Split, seed: int) -> tuple[Any, corruption.Corrupted]:
    """The class of the model, and the training data, under the setting's attack; which examples it hits follows from the seed."""
    robust = setting.robust
    if robust is None or robust.attack is None:
        return PrivateModel, corruption.Corrupted(*split.train, None)
    attack = corruption.Attack(robust.attack, robust.share)
    given = corruption.attacked(*split.train, attack, split.num_classes, seed, std=robust.strength)
    if attack.kind not in corruption.GRADIENT_ATTACKS:
        return PrivateModel, given
    return functools.partial(AttackedModel, attack=attack.kind, attack_options={"scale": robust.strength}), given


class _Recorder(keras.callbacks.Callback):
    """Keeps the rows of the epochs; with a private model also its state, from which a later process goes on."""

    def __init__(self, partial: Path, tell: Epoch):
        super().__init__()
        self.rows: list[dict[str, float]] = []
        self._tell, self._history, self._checkpoint = tell, partial.with_suffix(".json"), partial.with_suffix(".npz")

    def restore(self, model: PrivateModel) -> None:
        if not (self._history.exists() and self._checkpoint.exists()):
            return
        try:
            rows = json.loads(self._history.read_text(encoding="utf-8"))["rows"]
            model.load_checkpoint(self._checkpoint)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{self._history} is damaged: remove it to begin anew ({error})") from error
        # The rows are written first, so there may be one more than the checkpoint knows of.
        self.rows = rows[: model.spent.rounds // model.plan.rounds_per_epoch]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        row = {"epoch": epoch + 1, "accuracy": 100 * float(logs["val_accuracy"]), "loss": float(logs["val_loss"])}
        if FAILURES in logs:
            row[FAILURES] = float(logs[FAILURES])
        self.rows.append(row)
        if isinstance(self.model, PrivateModel):
            self._history.parent.mkdir(parents=True, exist_ok=True)
            write_text(self._history, to_json({"rows": self.rows}))
            self.model.save_checkpoint(self._checkpoint)
        self._tell(row)

    def forget(self) -> None:
        self._history.unlink(missing_ok=True)
        self._checkpoint.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other trainings are unfinished, or there was never anything
            self._history.parent.rmdir()


def _plain(
    setting: Setting, split: Split, epochs: int, seed: int, partial: Path, tell: Epoch
) -> list[dict[str, float]]:
    net = build(setting, split.train[0].shape[1:], split.num_classes, seed)
    batches = _Batches(*split.train, setting.batch_size, _augmentation(setting), Streams(seed))
    recorder = _Recorder(partial, tell)
    _compiled(net, sgd(setting, len(batches))).fit(
        batches,
        epochs=epochs,
        shuffle=False,  # they are already
        validation_data=split.test,
        validation_batch_size=EVALUATED_AT_ONCE,
        # Not on_epoch_end of the data: Keras calls that once more while it builds.
        callbacks=[recorder, keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: batches.draw(epoch))],
        verbose=0,
    )
    return recorder.rows


class _Batches(keras.utils.PyDataset):
    """Shuffled epochs of whole batches, each augmented anew; a seed repeats them."""

    def __init__(self, x: np.ndarray, y: np.ndarray, size: int, augment: Any, streams: Streams):
        super().__init__()
        if len(y) < size:
            raise DataError(f"batch_size must be at most the {len(y)} training examples; got {size}")
        self._x, self._y, self._size, self._streams = x, y, size, streams
        self._augment = None if augment is None else tf.function(augment, reduce_retracing=True)
        self.draw(0)

    def draw(self, epoch: int) -> None:
        """Shuffles for an epoch."""
        self._epoch = epoch
        self._order = self._streams.generator("sampling", self._epoch).permutation(len(self._y))

    def __len__(self) -> int:
        return len(self._y) // self._size

    def __getitem__(self, index: int) -> tuple[Any, np.ndarray]:
        chosen = self._order[index * self._size : (index + 1) * self._size]
        x = self._x[chosen]
        if self._augment is not None:
            bits = self._streams.generator("augment", self._epoch, index)
            seeds = bits.integers(np.iinfo(np.int64).min, np.iinfo(np.int64).max, size=(self._size, 2), endpoint=True)
            x = self._augment(tf.constant(x), tf.constant(seeds))
        return x, self._y[chosen]
