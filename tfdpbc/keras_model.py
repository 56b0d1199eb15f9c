"""PrivateModel: compile, fit, evaluate, predict and export as Keras users know them, with Algorithm 1 inside `fit`."""

from __future__ import annotations

import contextlib
import functools
import json
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpbc import _validate, algorithms, compatibility, normalization
from tfdpbc.algorithms import Algorithm, AlgorithmSequence
from tfdpbc.data.augmentation import Augmentation
from tfdpbc.data.sources import Source, as_source, check_labels
from tfdpbc.errors import BudgetExhausted, DataError, IncompatibleModel
from tfdpbc.gradients import auto, report
from tfdpbc.gradients.engine import Engine
from tfdpbc.gradients.function import ModelFunction
from tfdpbc.gradients.losses import PerExampleLoss
from tfdpbc.ledger import Ledger
from tfdpbc.plan import PrivacyPlan, Spent
from tfdpbc.random import Streams
from tfdpbc.statistics import block as statistics_block
from tfdpbc.training import augment as augmenting
from tfdpbc.training import checkpoint, loop, replicas
from tfdpbc.training.averaging import Averages
from tfdpbc.training.feed import Feed
from tfdpbc.training.round import Round
from tfdpbc.training.whole_round import FAILURES

_UNPROTECTED = (
    "the moving statistics of batch normalisation were written from raw data without noise (statistics='unprotected'); "
    "only the noisy updates are private"
)
_OTHER_PLAN = "the weights were restored from a training under another plan, whose noise is not known here"
_VOID = 0
_TRAINED, _RAW = "_tfdpbc_trained", "_tfdpbc_raw_statistics"
_PUBLIC = "The moving statistics of batch normalisation were computed from data that the user called public; it is not protected."
_SEEDED = "Warning: the run was seeded; the guarantee holds only against those who do not know the seed."
_FROZEN = (
    *("model", "plan", "algorithm", "engine", "statistics", "streams", "ledger"),
    *("augment", "augmentations", "averaging", "averages"),
)
_REFUSED = {
    "batch_size": "the plan's sampling draws the batches",
    "shuffle": "the plan's sampling draws the batches",
    "steps_per_epoch": "the plan's sampling fixes the rounds of an epoch",
    "class_weight": "use sample_weight, which is clipped with the example",
    "validation_split": "it would change the number of examples the plan counts; pass validation_data",
    "initial_epoch": "training goes on where the released rounds end",
}


@keras.saving.register_keras_serializable("tfdpbc")
class PrivateModel(keras.Model):
    """A Keras model whose `fit` runs Algorithm 1 of paper A under a `PrivacyPlan`.

    Args:
      model: any Keras 3 model (TensorFlow backend); it is trained in place and its layers stay as they are.
      plan: what is released, with which noise.
      algorithm: A, what a contribution computes, or an `AlgorithmSequence`. Default: `BatchGradient()`.
      engine: `"auto"` or the name of a gradient engine.
      statistics: what becomes of batch normalisation's moving statistics: `"private"` (only with a plan that has
        `statistics`, which says it already), `"public"`, `"batch"` or `"unprotected"` (see `compatibility.STATISTICS`);
        must be chosen for a model that has them.
      seed: None draws all randomness from the operating system; a number makes the run reproducible, and the guarantee
        then holds only against those who do not know it.
      physical_batch_size: most examples computed at once; changes memory and speed, never the result. Default: chosen.
      memory_budget: bytes that computing contributions may take at once, if `physical_batch_size` is not given. Default:
        `gradients.auto.MEMORY_BUDGET`.
      augment: changes each example, anew in each round, before its gradient: a `data.Augmentation` for images, or a
        function ``(row, seed) -> row`` on the input of one example (see `training.augment.PerRow`). Only in training.
      augmentations: K, how many augmentations of each example stand in its contribution, whose gradient is their mean. It
        costs time, no privacy. In loss and metrics each example counts once (its mean loss, its first augmentation's
        output).
      averaging: decay in (0, 1) of an exponential average of the weights (see `training.averaging.Averages`), which costs
        no privacy. `averaged` puts it in place of the weights, ``export(..., averaged=True)`` writes it, and
        `validation_data` is evaluated with it. Moving statistics are not averaged.

    Several devices: make the model and the PrivateModel in the scope of a `tf.distribute.MirroredStrategy`. The replicas
    share each round's contributions; their clipped sums are added up and noised once.

    Formal guarantee: what `fit` does to the trainable weights is a post-processing of the `spent.rounds` noisy updates,
    which together are f-DP for f = ``spent.trade_off()`` under the plan's neighbouring relation. Metrics, losses and
    whatever else was computed on the data are not covered.
    """

    def __init__(
        self,
        model: keras.Model,
        plan: PrivacyPlan,
        algorithm: Algorithm | AlgorithmSequence | None = None,
        engine: str = "auto",
        statistics: str | None = None,
        seed: int | None = None,
        physical_batch_size: int | None = None,
        memory_budget: int | None = None,
        augment: Any = None,
        augmentations: int = 1,
        averaging: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if keras.backend.backend() != "tensorflow":
            raise RuntimeError(f"tfdpbc needs the TensorFlow backend of Keras; got {keras.backend.backend()!r}")
        self.model = _validate.instance("model", model, keras.Model, "a Keras model")
        # Its clipping counts the model's blocks now, so that no guarantee is ever stated for another number of them.
        self.plan = _validate.instance("plan", plan, PrivacyPlan, "a PrivacyPlan").for_model(model)
        self.algorithm = algorithms.checked(algorithm)
        self.engine = _validate.choice("engine", engine, auto.ENGINES)
        self.statistics = compatibility.chosen_statistics(statistics, plan)
        self.physical_batch_size = physical_batch_size
        if memory_budget is not None:
            _validate.integer("memory_budget", memory_budget, at_least=1)
        self.memory_budget = memory_budget
        self.augment = augment
        self.augmentations = _validate.integer("augmentations", augmentations, at_least=1)
        if augment is None and self.augmentations > 1:
            _validate.fail("augmentations", "1 without an augment: equal rows have equal gradients", augmentations)
        change = augmenting.rowwise(augment)
        self._augmenter = None if change is None else augmenting.Augmenter(change, self.augmentations)
        self.averaging = averaging
        self.averages = None if averaging is None else Averages(averaging)
        replicas.check(self.distribute_strategy, model, jit_compile=False)
        self.streams = Streams(seed)
        # Counted in Python, so that restoring old weights can't lower it; mirrored in a variable, so that it is saved.
        self.ledger = Ledger()
        self._unfinished: int | None = None  # epoch whose draws this process holds
        self._watch: Any = None  # see `rounds`
        self._voided = getattr(model, _RAW, False)  # raw statistics were written once; nothing takes that back
        self._fitting = False
        self._rounds_released = self.add_weight(
            shape=(), dtype="int64", initializer="zeros", trainable=False, name="rounds_released"
        )
        # Every file of weights carries it, so that rounds of one plan are never stated as rounds of another, and a model
        # that once held raw statistics (_VOID) is never stated as private.
        self._plan_mark = self.add_weight(
            shape=(), dtype="int64", initializer="zeros", trainable=False, name="plan_mark"
        )
        self._plan_mark.assign(_mark(self.plan))
        self._clip_state = self._make_clip_state()
        self._statistics_round, self._public_statistics = None, None
        if self.statistics == "public":
            # How many rounds were released when the statistics were last computed from public data; -1: they never were.
            self._statistics_round = self.add_weight(
                shape=(), dtype="int64", initializer="zeros", trainable=False, name="statistics_round"
            )
            self._statistics_round.assign(-1)
        if getattr(model, _TRAINED, False):
            warnings.warn(
                f"model {model.name!r} was trained privately before; this PrivateModel counts its own rounds only, and the "
                "earlier ones must be added to its guarantee",
                stacklevel=2,
            )
        self._rounds: loop.Rounds | None = None
        self._row_loss: PerExampleLoss | None = None
        self._inputs: Any = None  # zeros shaped like two examples, once there was data
        self._public: Feed | None = None
        self._trained: list[int] = []
        self.engine_reason = ""
        if model.built:
            self._check_model()
            self._cover()
            self.built = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FROZEN and name in self.__dict__:
            raise AttributeError(f"{name} of a PrivateModel is fixed: the rounds already released were drawn under it")
        super().__setattr__(name, value)

    # What Keras calls.

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """The model's own forward pass."""
        if self.statistics != "batch" or training:
            return self.model(inputs, training=training)
        with normalization.by_batch(compatibility.batch_normalizations(self.model)):
            return self.model(inputs, training=training)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras; warns where the moving statistics are not those of the public data yet."""
        self._warn_of_old_statistics()
        return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras; warns where the moving statistics are not those of the public data yet."""
        self._warn_of_old_statistics()
        return super().predict(*args, **kwargs)

    def build(self, input_shape: Any) -> None:
        """Nothing to build beyond the model itself."""
        if not self.model.built:
            self.model.build(input_shape)

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: bool = False,
        auto_scale_loss: bool = False,
    ) -> None:
        """As `keras.Model.compile`; XLA is off unless asked for (measured slower on CPUs).

        Args:
          steps_per_execution: rounds run by one call into TensorFlow.
          auto_scale_loss: refused; gradients are clipped in float32, so a loss scale has no use.
        """
        if loss is None:
            raise ValueError("loss must be a Keras loss, its name or a function; got loss=None")
        _validate.integer("steps_per_execution", steps_per_execution, at_least=1)
        if auto_scale_loss:
            _validate.fail("auto_scale_loss", "False (norms and sums are float32)", auto_scale_loss)
        super().compile(
            optimizer=optimizer,
            loss=loss,
            loss_weights=loss_weights,
            metrics=metrics,
            weighted_metrics=weighted_metrics,
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
            auto_scale_loss=False,
        )
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            _validate.fail("optimizer", "without loss scaling", type(self.optimizer).__name__)
        if self.averages and getattr(self.optimizer, "use_ema", False):
            _validate.fail("averaging", "None with an optimizer that averages itself (use_ema)", self.averaging)
        names = getattr(self.model, "output_names", None)
        self._row_loss = PerExampleLoss(loss, loss_weights, names)
        self._rounds = None

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as saved (Keras asks for this where `compile` is overridden)."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.model.built:
            self._build_optimizer()

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a PrivateModel is trained by fit alone: a plain training step would release raw gradients")

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: it would train on raw gradients."""
        self.train_step()

    def get_config(self) -> dict[str, Any]:
        try:
            algorithm = algorithms.to_config(self.algorithm)
        except NotImplementedError as error:
            raise NotImplementedError(
                f"a PrivateModel with a user-defined algorithm cannot be serialised; save its model ({error})"
            ) from error
        if not isinstance(self.augment, Augmentation | None):
            raise NotImplementedError(
                "a PrivateModel with a user-defined augmentation cannot be serialised; save its model"
            )
        self._sync()
        return {
            **super().get_config(),
            "model": keras.saving.serialize_keras_object(self.model),
            "plan": self.plan.to_config(),
            "algorithm": algorithm,
            "engine": self.engine,
            "statistics": self.statistics,
            "physical_batch_size": self.physical_batch_size,
            "memory_budget": self.memory_budget,
            "augment": self.augment and self.augment.to_config(),
            "augmentations": self.augmentations,
            "averaging": self.averaging,
        }  # no seed: whoever had the file could subtract the noise

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PrivateModel:
        config = dict(config)
        config["model"] = keras.saving.deserialize_keras_object(config["model"])
        config["plan"] = PrivacyPlan.from_config(config["plan"])
        if config.get("algorithm") is not None:
            config["algorithm"] = algorithms.from_config(config["algorithm"])
        if config.get("augment") is not None:
            config["augment"] = Augmentation(**config["augment"])
        return cls(**config)

    def save_weights(self, *args: Any, **kwargs: Any) -> None:
        """As in Keras; the count of released rounds in the file is the true one."""
        self._sync()
        super().save_weights(*args, **kwargs)

    def load_weights(self, *args: Any, **kwargs: Any) -> None:
        """As in Keras; the count of released rounds never falls, and an unfinished epoch is given up."""
        self._refuse_averaged("load_weights")
        super().load_weights(*args, **kwargs)
        self._unfinished = None

    def save_own_variables(self, store: Any) -> None:
        """As in Keras, and the averages."""
        super().save_own_variables(store)
        for name, variable in self.averages.state() if self.averages else ():
            store[name] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """As in Keras, and the averages where the file has them."""
        super().load_own_variables({name: store[name] for name in store.keys() if name.isdecimal()})  # noqa: SIM118
        if self.averages:
            self.averages.restore(store)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[PrivateModel]:
        """The averaged weights in the place of the weights within the `with` block, to evaluate, predict or save them.

        Raises:
          ValueError: the model was made without `averaging`.
        """
        if self.averages is None:
            _validate.fail("averaging", "given when the model is made: there is no average of its weights", None)
        with self.averages.in_place():
            yield self

    def _refuse_averaged(self, what: str) -> None:
        if self.averages and self.averages.swapped:
            raise RuntimeError(f"{what} must not be called within averaged(): it goes on from the weights themselves")

    def _cover(self) -> None:
        """An average for each weight that is trained."""
        if self.averages:
            with self.distribute_strategy.scope():
                self.averages.cover(self.model.trainable_variables)

    # The guarantee.

    @property
    def spent(self) -> Spent:
        """What the rounds released so far gave away."""
        void, released, mark = None, self._released(), _number(self._plan_mark)
        if self._voided or mark == _VOID or self._writes_raw_statistics():
            void = _UNPROTECTED
        elif mark != _mark(self.plan):
            void = _OTHER_PLAN
        if void:
            released = min(released, self.plan.rounds)  # restored counts may be of a longer plan
        repeated = self.ledger.spent(self.plan).repeated
        caveats = () if self.streams.seed is None else (_SEEDED,)
        if self._statistics_round is not None and _number(self._statistics_round) >= 0:
            caveats = (*caveats, _PUBLIC)
        return Spent(self.plan, released, void, caveats, repeated)

    def _released(self) -> int:
        return max(self.ledger.position(self.plan), _number(self._rounds_released))

    def _sync(self) -> None:
        """Brings the variables up to date before they are written: restored weights may have set them back."""
        self._rounds_released.assign(self._released())
        if self._voided:
            self._plan_mark.assign(_VOID)

    def _record(self, rounds: int) -> None:
        """Counts rounds as released, before they are. Nothing lowers the count."""
        _validate.integer("rounds", rounds, at_least=0)
        restored = self._released() - self.ledger.position(self.plan)  # a weight file may have brought more
        self.ledger.record(self.plan, restored + rounds)
        if rounds and self._watch is not None:
            self._watch.recorded(self.ledger)
        if self.ledger.entries:
            object.__setattr__(self.model, _TRAINED, True)
        self._sync()

    def _state_variables(self) -> list[Any]:
        return compatibility.data_written_state(self.model, self.statistics)

    def _writes_raw_statistics(self) -> bool:
        return self.statistics == "unprotected" and bool(self._state_variables())

    def recompute_statistics(self, x: Any, batch_size: int | None = None) -> None:
        """Sets batch normalisation's moving statistics to those of public data (``statistics="public"``).

        Call it after training, and after each further `fit`; `fit(public_data=x)` does so at the end of each epoch.

        Args:
          x: inputs of at least two examples that need no protection, in any of the forms that `fit` takes. Labels are not
            looked at.
          batch_size: examples that are normalised together, as those of a contribution are in training (the default). A
            last batch that is not full is left out.

        Raises:
          ValueError: the model was not made with ``statistics="public"``.
          DataError: too few examples, or statistics that are not finite; nothing was changed.
        """
        if self.statistics != "public":
            _validate.fail("statistics", "'public' for statistics to be recomputed", self.statistics)
        if not self.model.built:
            raise ValueError("model must be built before its statistics are computed; got a model without weights")
        layers = compatibility.batch_normalizations(self.model)
        size = max(2, self.plan.sampling.shape[1]) if batch_size is None else batch_size
        if self._public_statistics is None or self._public_statistics.given != layers:
            self._public_statistics = normalization.PublicStatistics(self.model, layers)
        self._public_statistics.recompute(x, size)
        self._statistics_round.assign(self._released())

    def _statistics_are_old(self) -> bool:
        if self.statistics != "public" or not compatibility.batch_normalizations(self.model):
            return False
        released = self._released()
        return released > 0 and _number(self._statistics_round) != released

    def _warn_of_old_statistics(self) -> None:
        if self._statistics_are_old():
            warnings.warn(
                "batch normalisation's moving statistics are not those of the trained model: call "
                "recompute_statistics(x) with public data, or fit(public_data=x)",
                stacklevel=3,
            )

    def export(
        self, filepath: Any, delta: float = 1e-5, averaged: bool = False, front: Any = None, **extra: Any
    ) -> None:
        """Writes the model as a SavedModel that TensorFlow alone can load, its guarantee at `delta` inside.

        With ``statistics="batch"`` the SavedModel normalises by the batch that it is given.

        Args:
          averaged: write the averaged weights in the place of the last ones; the guarantee is the same.
          front: a Keras model whose outputs this model was trained on (see `models.fixed_features`), written before it. It
            must be public: the guarantee covers no weights of its own.

        Raises:
          IncompatibleModel: with ``statistics="public"``, if they were not recomputed after the last round.
        """
        from tfdpbc.export import export_model

        forward = None
        if self._statistics_are_old():
            raise IncompatibleModel(
                "statistics='public' must be computed from public data before the model is exported: call "
                "recompute_statistics(x) after training; what the layers hold now does not belong to their weights"
            )
        if self.statistics == "batch":
            forward = normalization.inference(self.model, compatibility.batch_normalizations(self.model))
        model = self.model
        if front is not None:
            head = forward or functools.partial(self.model, training=False)
            model = _validate.instance("front", front, keras.Model, "a Keras model")

            def forward(inputs: Any) -> Any:
                return head(front(inputs, training=False))

        with self.averaged() if averaged else contextlib.nullcontext():
            export_model(model, filepath, self.spent.guarantee(delta), extra, forward)

    def save_checkpoint(self, path: Any) -> None:
        """Writes weights, optimizer state and the count of released rounds to one file."""
        self._refuse_averaged("save_checkpoint")
        self._build_optimizer()
        self._record(0)
        checkpoint.save(self, path)

    def load_checkpoint(self, path: Any) -> None:
        """Restores what `save_checkpoint` wrote; the count of released rounds never falls.

        Raises:
          RunFolderError: the file is missing, damaged, of another plan or of another model; nothing was changed.
        """
        self._refuse_averaged("load_checkpoint")
        self._build_optimizer()
        self.ledger.absorb(checkpoint.load(self, path))
        self._record(0)
        self._unfinished = None  # the rest of its permutation belongs to another process

    def _build_optimizer(self) -> None:
        if not (self.compiled and self.model.built):
            raise ValueError("the model must be built and compiled before its checkpoints are used")
        with self.distribute_strategy.scope():
            self.optimizer.build(self.model.trainable_variables)
        self._cover()

    # Training.

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        *,
        epochs: int | None = None,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_data: Any = None,
        sample_weight: Any = None,
        validation_batch_size: int | None = None,
        validation_steps: int | None = None,
        validation_freq: int = 1,
        public_data: Any = None,
        **refused: Any,
    ) -> keras.callbacks.History:
        """Trains for some epochs of the plan, going on where the last call stopped.

        Args:
          x, y, sample_weight: arrays, tensors, a finite tf.data set, or an object with ``__len__`` and
            ``__getitem__(index array)``; see `tfdpbc.data.sources.as_source`.
          epochs: how many epochs to train now; by default what is left of the plan.
          verbose, callbacks, validation_*: as in Keras.
          public_data: ``x``, ``(x, y)`` or ``(x, y, sample_weight)`` that nobody needs to protect. Clippings with
            `PublicNorms` need it, with y; ``statistics="public"`` takes its inputs for `recompute_statistics` at the end
            of each epoch, before validation. Refused where nothing uses it.

        Returns:
          The Keras History.

        Raises:
          BudgetExhausted: the plan does not hold that many more rounds; nothing was released.
          IncompatibleModel: the model would break the guarantee.
          DataError, ValueError, TypeError: the arguments do not fit the plan or the model.
        """
        for name, value in refused.items():
            if name not in _REFUSED:
                raise TypeError(f"fit() got an unexpected argument {name!r}")
            if value is not None:
                raise ValueError(f"{name} must not be given: {_REFUSED[name]}; got {name}={value!r}")
        if not self.compiled:
            raise ValueError("the model must be compiled before fit: call compile(optimizer, loss)")
        self._refuse_averaged("fit")
        _validate.integer("validation_freq", validation_freq, at_least=1)
        if self._fitting:
            raise RuntimeError("fit must not be called while fit runs: two loops would draw the same rounds")
        source = as_source(x, y, sample_weight)
        first, last = self._epochs(epochs)
        self._check_data(source)
        public_inputs = self._check_public(public_data)
        self._prepare(source)
        container = self._callback_list(callbacks, verbose, last)
        self.stop_training = False
        container.on_train_begin()
        # A callback may just have restored a later state (BackupAndRestore): its rounds are released already.
        epochs_left = range(max(first, self._released() // self.plan.rounds_per_epoch), last)
        validate, refresh = None, None
        if self.statistics == "public" and public_inputs is not None:
            refresh = functools.partial(self.recompute_statistics, public_inputs)
        if validation_data is not None:
            validate = functools.partial(
                self._evaluate_beside, validation_data, validation_batch_size, validation_steps
            )
        self._fitting = True
        try:
            logs = self._run_epochs(epochs_left, container, validate, validation_freq, refresh)
        finally:
            self._fitting = False
        # As in Keras: where the optimizer averages (use_ema), its average becomes the weights.
        if int(self.optimizer.iterations.numpy()):  # before its first step it would be zeros
            self.optimizer.finalize_variable_values(self.trainable_weights)
        container.on_train_end(logs)
        self.reset_metrics()  # their state is made of private data, and saving the model would save it
        return self.history

    def _run_epochs(
        self,
        epochs: range,
        container: keras.callbacks.CallbackList,
        validate: Callable[[], dict[str, Any]] | None,
        validation_freq: int,
        refresh: Callable[[], None] | None,
    ) -> dict[str, Any]:
        logs: dict[str, Any] = {}
        for epoch in epochs:
            container.on_epoch_begin(epoch)
            logs = self._epoch(epoch, container)
            if refresh is not None:
                refresh()
            if validate is not None and (epoch + 1) % validation_freq == 0:
                logs.update(validate())
            container.on_epoch_end(epoch, logs)
            if self.stop_training:
                break
        return logs

    def _epochs(self, epochs: int | None) -> tuple[int, int]:
        """The epochs to train now as a range; refuses what the plan does not hold."""
        done, per_epoch = self._released(), self.plan.rounds_per_epoch
        first = done // per_epoch
        last = self.plan.epochs if epochs is None else first + _validate.integer("epochs", epochs, at_least=1)
        if last > self.plan.epochs or first >= self.plan.epochs:
            raise BudgetExhausted(
                f"the plan holds {self.plan.epochs} epochs ({self.plan.rounds} rounds), of which {done} rounds are "
                f"released; got epochs={epochs}"
            )
        return first, last

    def _check_data(self, source: Source) -> None:
        planned = getattr(self.plan.sampling, "num_examples", None)
        if planned is not None and len(source) != planned:
            raise DataError(
                f"x must have the {planned} examples that the plan's sampling counts; got {len(source)} examples"
            )
        if source.tensors is None or not _is_sparse_categorical(self._row_loss.loss):
            return
        classes = getattr(self.model, "output_shape", None)
        if isinstance(classes, tuple) and isinstance(classes[-1], int) and source.tensors[1] is not None:
            check_labels(source.tensors[1], classes[-1])

    def _check_public(self, public_data: Any) -> Any:
        """Takes the public data to where it is used, and returns its inputs."""
        measures, kind = self.plan.clipping.needs_public_data, type(public_data).__name__
        if public_data is None:
            if measures:
                _validate.fail("public_data", "given: the clipping measures norms on it", None)
            return None
        if not measures and self.statistics != "public":
            _validate.fail("public_data", "None: neither the clipping nor the statistics use it", kind)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(public_data)
        if measures:
            if y is None:
                _validate.fail("public_data", "(x, y) or (x, y, sample_weight): the clipping measures gradients", kind)
            self._public = Feed(as_source(x, y, sample_weight), self._public)
        return x

    def _check_model(self) -> None:
        compatibility.check_trainable(self.model)
        compatibility.check_batch_normalization(self.model, self.plan.sampling, self.statistics)
        if self.plan.statistics and self.model.built and not compatibility.batch_normalizations(self.model):
            warnings.warn(
                "the plan charges for batch normalisation's statistics, which this model does not release: a plan without "
                "statistics guarantees more",
                stacklevel=3,
            )
        compatibility.check_penalties(self.model, self.plan.sampling)

    def _prepare(self, source: Source) -> None:
        """Builds what is not built yet: the model, the optimizer, the metrics, the compiled round."""
        if self.model.built:
            self._check_model()
        x, y, sample_weight = source.gather(np.arange(min(2, len(source))))
        if y is None:
            raise DataError("y must be given: the loss compares it with the model's output")
        # Zeros shaped like two examples show the structures, and no layer can keep anything of the data.
        x, y, sample_weight = tf.nest.map_structure(
            lambda t: None if t is None else np.zeros_like(t), (x, y, sample_weight)
        )
        if self._augmenter:
            self._augmenter.check(x)
        outputs = self.model(x)
        self._row_loss(y, outputs, sample_weight)
        self.built = True
        self._check_model()
        self._cover()
        compatibility.warn_of_preprocessing(self.model)
        with self.distribute_strategy.scope():
            self.optimizer.build(self.model.trainable_variables)
            self.compute_metrics(x, y, outputs, sample_weight)
            self.reset_metrics()
        previous = self._rounds
        feed = Feed(source, previous.feed if previous else None)
        state = self._state_variables()
        self._voided = self._voided or self._writes_raw_statistics() or _number(self._plan_mark) == _VOID
        if self._voided:
            object.__setattr__(self.model, _RAW, True)  # another PrivateModel of this model has to know
        self._sync()
        trained = [id(v) for v in (*self.model.trainable_variables, *state)]
        unchanged, self._trained = trained == self._trained, trained
        if previous and unchanged and feed.resident is not None and feed.resident is previous.feed.resident:
            previous.feed = feed
            return
        strategy, self._inputs = self.distribute_strategy, x
        replicas.check(strategy, self.model, bool(self.jit_compile), state, self.optimizer)
        engine, self.engine_reason = self._build_engine()
        statistics = statistics_block(compatibility.batch_normalizations(self.model), self.plan.statistics)
        with strategy.scope():
            self._rounds = loop.Rounds(
                Round(
                    self.plan,
                    engine.function,
                    engine,
                    list(engine.block_of_variable),
                    statistics=statistics,
                    augmenter=self._augmenter,
                    interrupt=None if self._watch is None else self._watch.interrupt,
                ),
                feed,
                self.optimizer,
                state,
                self._observe,
                self.get_metrics_result,
                rounds_per_call=int(self.steps_per_execution),
                jit_compile=bool(self.jit_compile),
                eagerly=bool(self.run_eagerly),
                strategy=strategy if strategy.num_replicas_in_sync > 1 else None,
                averages=self.averages,
                clip_state=self._clip_state,
            )

    # Clipping that adapts.

    def _make_clip_state(self) -> dict[str, Any]:
        """The clipping's state as variables that are saved with the model: public, or made of noisy releases."""
        clipping, made = self.plan.clipping, {}
        if self.plan.aggregation.tested:
            made[FAILURES] = self.add_weight(
                shape=(), dtype="int64", initializer="zeros", trainable=False, name=FAILURES
            )
        if not clipping.adaptive:
            return made
        sizes = [0] * clipping.num_blocks()
        if self.model.built:
            for variable, block in zip(self.model.trainable_variables, clipping.blocks_of(self.model), strict=True):
                sizes[block] += int(np.prod(variable.shape))
        for name, value in clipping.initial_state(sizes).items():
            value = np.asarray(value)
            made[name] = self.add_weight(
                shape=value.shape, dtype=value.dtype.name, initializer="zeros", trainable=False, name=f"clipping_{name}"
            )
            made[name].assign(value)
        return made

    @property
    def test_failures(self) -> int:
        """In how many of the released rounds the private test failed (`TrimmedSum`); public, as the outcomes are."""
        return _number(self._clip_state[FAILURES]) if self.plan.aggregation.tested else 0

    def clip_norms(self) -> np.ndarray:
        """The clip norm of each block in the next round, ``[L]``; public, as all that they are made of.

        Blocks of layers are in the order of `tfdpbc.clipping.layers_of`.
        """
        clipping = self.plan.clipping
        adapted = {}
        if clipping.adaptive:
            adapted = {"state": {name: tf.convert_to_tensor(v.value) for name, v in self._clip_state.items()}}
        return np.asarray(clipping.bounds(self._released(), self.plan.rounds_per_epoch, **adapted), np.float32)

    def _refresh_from_public(self, epoch: int) -> None:
        """Measures the norms of an epoch on public data, with the round's own engine."""
        sampling, clipping = self.plan.sampling, self.plan.clipping
        shape = clipping.estimates.contributions, max(1, round(sampling.examples_divisor))
        drawn = self.streams.generator("public", epoch).integers(len(self._public), size=shape)
        norms = self._rounds.mean_norms(drawn.astype(np.int32), self._public, self.streams.key("public-layers", epoch))
        state = {name: tf.convert_to_tensor(v.value) for name, v in self._clip_state.items()}
        for name, value in clipping.with_estimates(state, tf.constant(norms)).items():
            self._clip_state[name].assign(value)

    def _build_engine(self) -> tuple[Engine, str]:
        clipping = self.plan.clipping
        return auto.build_engine(
            self.engine,
            ModelFunction(self.model, self._row_loss, self._state_variables()),
            self.algorithm,
            self.plan.sampling,
            clipping.blocks_of(self.model),
            clipping.num_blocks(),
            self.physical_batch_size,
            self.memory_budget,
            self._inputs,
            self.distribute_strategy.num_replicas_in_sync,
            self.augmentations,
        )

    def engine_report(self) -> report.Report:
        """What computes the contributions of each layer, by which rule and at which cost; `print` shows a table.

        Raises:
          ValueError: the model is not built yet.
          IncompatibleModel: the engine that was asked for cannot compute the model.
        """
        if not self.model.built:
            raise ValueError("model must be built before its engine is known; got a model without weights")
        built = self._rounds and (self._rounds.round.engine, self.engine_reason)
        rows = self.plan.sampling.shape[1] * self.augmentations
        return report.report(*(built or self._build_engine()), rows, self._inputs)

    def _observe(self, y: Any, outputs: Any, sample_weight: Any, mask: Any) -> None:
        """Updates the training metrics with the rows of a round; padding is left out."""
        if mask is not None:
            y, outputs, sample_weight = tf.nest.map_structure(
                lambda t: None if t is None else tf.boolean_mask(t, mask), (y, outputs, sample_weight)
            )
        self.compute_metrics(None, y, outputs, sample_weight)

    def _epoch(self, epoch: int, container: keras.callbacks.CallbackList) -> dict[str, Any]:
        self.reset_metrics()
        logs: dict[str, Any] = {}
        chunk = int(self.steps_per_execution)
        for last, logs in self._released_chunks(epoch, chunk, container.on_train_batch_begin):
            container.on_train_batch_end(last, logs)
            if self.stop_training:
                break
        return logs

    def _released_chunks(
        self, epoch: int, chunk: int, begin: Callable[[int], None] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Releases what is left of an epoch; yields after each chunk its last round (in the epoch) and the logs."""
        start = self._released() - epoch * self.plan.rounds_per_epoch
        if start and self._unfinished != epoch and self.plan.sampling.epoch_is_joint:
            # The draws that this epoch began with are gone; other ones could use an example twice.
            warnings.warn(
                "the unfinished epoch cannot be resumed; the rest of its rounds counts as released", stacklevel=4
            )
            self._record(self.plan.rounds_per_epoch - start)
            return
        if not start and self.plan.clipping.needs_public_data:
            self._refresh_from_public(epoch)
        self._unfinished = epoch
        for draw in loop.draws(self._rounds.feed, self.plan.sampling, self.streams, epoch, start, chunk):
            first, count = self._released(), len(draw.indices)
            if first != epoch * self.plan.rounds_per_epoch + start:
                raise RuntimeError(
                    f"{first} rounds are recorded where this loop released {epoch} epochs and {start} rounds"
                )
            start += count
            position = first - epoch * self.plan.rounds_per_epoch
            if begin is not None:
                begin(position)
            self._record(count)
            yield position + count - 1, self._rounds.run(draw, first, self.streams)

    def rounds(
        self, x: Any, y: Any = None, *, sample_weight: Any = None, public_data: Any = None, watch: Any = None
    ) -> Iterator[int]:
        """Releases what is left of the plan one round at a time, for programs that look after the weights in between.

        `fit` is this loop with callbacks and metrics in place of `watch`. As there, each round is recorded before its noise
        is drawn, and the plan's end ends the iterator. Weights may be set whenever the iterator waits: the next round then
        starts from them, which the guarantee allows for (adaptive composition) as long as they were made without this data
        or from what was released of it.

        Args:
          x, y, sample_weight, public_data: as in `fit`.
          watch: None, or an object with ``recorded(ledger)``, called whenever rounds were recorded, before their noise is
            drawn (an error stops them); and ``interrupt(i, passes)``, called in the graph, see `training.round.Round`.

        Yields:
          How many rounds of the plan are released so far.

        Raises:
          As `fit`; ValueError if the model was compiled with ``steps_per_execution`` other than 1.
        """
        if not self.compiled:
            raise ValueError("the model must be compiled before its rounds: call compile(optimizer, loss)")
        if int(self.steps_per_execution) != 1:
            _validate.fail("steps_per_execution", "1: rounds are released one at a time", self.steps_per_execution)
        self._refuse_averaged("rounds")
        if self._fitting:
            raise RuntimeError(
                "rounds must not be called while fit or rounds runs: two loops would draw the same rounds"
            )
        if watch is not self._watch:
            self._watch, self._rounds = watch, None
        source = as_source(x, y, sample_weight)
        self._check_data(source)
        self._check_public(public_data)
        self._prepare(source)
        self._fitting = True
        try:
            while (released := self._released()) < self.plan.rounds:
                for _ in self._released_chunks(released // self.plan.rounds_per_epoch, 1):
                    self.reset_metrics()  # nobody reads them
                    yield self._released()
        finally:
            self._fitting = False

    def _evaluate_beside(self, data: Any, batch_size: int | None, steps: int | None) -> dict[str, Any]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with self.averaged() if self.averages else contextlib.nullcontext():
            logs = self.evaluate(
                x, y, batch_size=batch_size, sample_weight=sample_weight, steps=steps, verbose=0, return_dict=True
            )
        return {f"val_{name}": value for name, value in logs.items()}

    def _callback_list(self, callbacks: Any, verbose: Any, epochs: int) -> keras.callbacks.CallbackList:
        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks
        return keras.callbacks.CallbackList(
            callbacks,
            add_history=True,
            add_progbar=verbose != 0,
            verbose=1 if verbose == "auto" else verbose,
            epochs=epochs,
            steps=self.plan.rounds_per_epoch,
            model=self,
        )


def _is_sparse_categorical(loss: Any) -> bool:
    name = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))
    return name == "sparse_categorical_crossentropy"


def _number(variable: Any) -> int:
    """The value of a scalar variable, also of one that is mirrored over devices."""
    return int(variable.numpy())


def _mark(plan: PrivacyPlan) -> int:
    """A number > 0 that tells plans apart."""
    return 1 + zlib.crc32(json.dumps(plan.to_config(), sort_keys=True).encode())
