"""PrivateModel: compile, fit, evaluate, predict and export as Keras users know them, with Algorithm 1 inside `fit`."""

from __future__ import annotations

import functools
import json
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpbc import _validate, compatibility
from tfdpbc.algorithms import Algorithm, BatchGradient
from tfdpbc.data.sources import Source, as_source, check_labels
from tfdpbc.errors import BudgetExhausted, DataError
from tfdpbc.gradients import auto, report
from tfdpbc.gradients.engine import Engine
from tfdpbc.gradients.function import ModelFunction
from tfdpbc.gradients.losses import PerExampleLoss
from tfdpbc.ledger import Ledger
from tfdpbc.plan import PrivacyPlan, Spent
from tfdpbc.random import Streams
from tfdpbc.training import checkpoint, loop, replicas
from tfdpbc.training.feed import Feed
from tfdpbc.training.round import Round

_UNPROTECTED = (
    "the moving statistics of batch normalisation were written from raw data without noise (statistics='unprotected'); "
    "only the noisy updates are private"
)
_OTHER_PLAN = "the weights were restored from a training under another plan, whose noise is not known here"
_VOID = 0
_TRAINED = "_tfdpbc_trained"
_SEEDED = "Warning: the run was seeded; the guarantee holds only against those who do not know the seed."
_FROZEN = ("model", "plan", "algorithm", "engine", "statistics", "streams", "ledger")
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
      algorithm: A, what a contribution computes.
      engine: `"auto"` or the name of a gradient engine.
      statistics: what becomes of batch normalisation's moving statistics (see `compatibility.STATISTICS`); must be chosen
        for a model that has them.
      seed: None draws all randomness from the operating system; a number makes the run reproducible, and the guarantee
        then holds only against those who do not know it.
      physical_batch_size: most examples computed at once; changes memory and speed, never the result. Default: chosen.
      memory_budget: bytes that computing contributions may take at once, if `physical_batch_size` is not given. Default:
        `gradients.auto.MEMORY_BUDGET`.

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
        algorithm: Algorithm | None = None,
        engine: str = "auto",
        statistics: str | None = None,
        seed: int | None = None,
        physical_batch_size: int | None = None,
        memory_budget: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if keras.backend.backend() != "tensorflow":
            raise RuntimeError(f"tfdpbc needs the TensorFlow backend of Keras; got {keras.backend.backend()!r}")
        self.model = _validate.instance("model", model, keras.Model, "a Keras model")
        # Its clipping counts the model's blocks now, so that no guarantee is ever stated for another number of them.
        self.plan = _validate.instance("plan", plan, PrivacyPlan, "a PrivacyPlan").for_model(model)
        self.algorithm = BatchGradient() if algorithm is None else algorithm
        if not callable(self.algorithm):
            _validate.fail("algorithm", "an algorithm such as BatchGradient()", algorithm, TypeError)
        self.engine = _validate.choice("engine", engine, auto.ENGINES)
        self.statistics = statistics
        self.physical_batch_size = physical_batch_size
        if memory_budget is not None:
            _validate.integer("memory_budget", memory_budget, at_least=1)
        self.memory_budget = memory_budget
        replicas.check(self.distribute_strategy, model, jit_compile=False)
        self.streams = Streams(seed)
        # Counted in Python, so that restoring old weights can't lower it; mirrored in a variable, so that it is saved.
        self.ledger = Ledger()
        self._unfinished: int | None = None  # epoch whose draws this process holds
        self._voided = False  # raw statistics were written once; nothing takes that back
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
            self.built = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FROZEN and name in self.__dict__:
            raise AttributeError(f"{name} of a PrivateModel is fixed: the rounds already released were drawn under it")
        super().__setattr__(name, value)

    # What Keras calls.

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """The model's own forward pass."""
        return self.model(inputs, training=training)

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
        if not isinstance(self.algorithm, BatchGradient):
            raise NotImplementedError(
                "a PrivateModel with a user-defined algorithm cannot be serialised; save its model"
            )
        self._sync()
        return {
            **super().get_config(),
            "model": keras.saving.serialize_keras_object(self.model),
            "plan": self.plan.to_config(),
            "engine": self.engine,
            "statistics": self.statistics,
            "physical_batch_size": self.physical_batch_size,
            "memory_budget": self.memory_budget,
        }  # no seed: whoever had the file could subtract the noise

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PrivateModel:
        config = dict(config)
        config["model"] = keras.saving.deserialize_keras_object(config["model"])
        config["plan"] = PrivacyPlan.from_config(config["plan"])
        return cls(**config)

    def save_weights(self, *args: Any, **kwargs: Any) -> None:
        """As in Keras; the count of released rounds in the file is the true one."""
        self._sync()
        super().save_weights(*args, **kwargs)

    def load_weights(self, *args: Any, **kwargs: Any) -> None:
        """As in Keras; the count of released rounds never falls, and an unfinished epoch is given up."""
        super().load_weights(*args, **kwargs)
        self._unfinished = None

    # The guarantee.

    @property
    def spent(self) -> Spent:
        """What the rounds released so far gave away."""
        void, released, mark = None, self._released(), _number(self._plan_mark)
        if self._voided or mark == _VOID or self._state_variables():
            void = _UNPROTECTED
        elif mark != _mark(self.plan):
            void = _OTHER_PLAN
        if void:
            released = min(released, self.plan.rounds)  # restored counts may be of a longer plan
        repeated = self.ledger.spent(self.plan).repeated
        return Spent(self.plan, released, void, () if self.streams.seed is None else (_SEEDED,), repeated)

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
        if self.ledger.entries:
            object.__setattr__(self.model, _TRAINED, True)
        self._sync()

    def _state_variables(self) -> list[Any]:
        return compatibility.data_written_state(self.model, self.statistics)

    def export(self, filepath: Any, delta: float = 1e-5, **extra: Any) -> None:
        """Writes the model as a SavedModel that TensorFlow alone can load, its guarantee at `delta` inside."""
        from tfdpbc.export import export_model

        export_model(self.model, filepath, self.spent.guarantee(delta), extra)

    def save_checkpoint(self, path: Any) -> None:
        """Writes weights, optimizer state and the count of released rounds to one file."""
        self._build_optimizer()
        self._record(0)
        checkpoint.save(self, path)

    def load_checkpoint(self, path: Any) -> None:
        """Restores what `save_checkpoint` wrote; the count of released rounds never falls.

        Raises:
          RunFolderError: the file is missing, damaged, of another plan or of another model; nothing was changed.
        """
        self._build_optimizer()
        self.ledger.absorb(checkpoint.load(self, path))
        self._record(0)
        self._unfinished = None  # the rest of its permutation belongs to another process

    def _build_optimizer(self) -> None:
        if not (self.compiled and self.model.built):
            raise ValueError("the model must be built and compiled before its checkpoints are used")
        with self.distribute_strategy.scope():
            self.optimizer.build(self.model.trainable_variables)

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
          public_data: ``(x, y)`` or ``(x, y, sample_weight)`` that nobody needs to protect; required by clippings with
            `PublicNorms`, and refused by the others.

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
        _validate.integer("validation_freq", validation_freq, at_least=1)
        if self._fitting:
            raise RuntimeError("fit must not be called while fit runs: two loops would draw the same rounds")
        source = as_source(x, y, sample_weight)
        first, last = self._epochs(epochs)
        self._check_data(source)
        self._check_public(public_data)
        self._prepare(source)
        container = self._callback_list(callbacks, verbose, last)
        self.stop_training = False
        container.on_train_begin()
        # A callback may just have restored a later state (BackupAndRestore): its rounds are released already.
        epochs_left = range(max(first, self._released() // self.plan.rounds_per_epoch), last)
        validate = None
        if validation_data is not None:
            validate = functools.partial(
                self._evaluate_beside, validation_data, validation_batch_size, validation_steps
            )
        self._fitting = True
        try:
            logs = self._run_epochs(epochs_left, container, validate, validation_freq)
        finally:
            self._fitting = False
        container.on_train_end(logs)
        self.reset_metrics()  # their state is made of private data, and saving the model would save it
        return self.history

    def _run_epochs(
        self,
        epochs: range,
        container: keras.callbacks.CallbackList,
        validate: Callable[[], dict[str, Any]] | None,
        validation_freq: int,
    ) -> dict[str, Any]:
        logs: dict[str, Any] = {}
        for epoch in epochs:
            container.on_epoch_begin(epoch)
            logs = self._epoch(epoch, container)
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

    def _check_public(self, public_data: Any) -> None:
        if self.plan.clipping.needs_public_data != (public_data is not None):
            needs = "given: the clipping measures norms on it" if public_data is None else "None: no clipping uses it"
            _validate.fail("public_data", needs, public_data if public_data is None else type(public_data).__name__)
        if public_data is not None:
            _validate.instance("public_data", public_data, (tuple, list), "(x, y) or (x, y, sample_weight)")
            self._public = Feed(as_source(*public_data), self._public)

    def _check_model(self) -> None:
        compatibility.check_trainable(self.model)
        compatibility.check_batch_normalization(self.model, self.plan.sampling, self.statistics)
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
        outputs = self.model(x)
        self._row_loss(y, outputs, sample_weight)
        self.built = True
        self._check_model()
        compatibility.warn_of_preprocessing(self.model)
        with self.distribute_strategy.scope():
            self.optimizer.build(self.model.trainable_variables)
            self.compute_metrics(x, y, outputs, sample_weight)
            self.reset_metrics()
        previous = self._rounds
        feed = Feed(source, previous.feed if previous else None)
        state = self._state_variables()
        self._voided = self._voided or bool(state) or _number(self._plan_mark) == _VOID
        self._sync()
        trained = [id(v) for v in (*self.model.trainable_variables, *state)]
        unchanged, self._trained = trained == self._trained, trained
        if previous and unchanged and feed.resident is not None and feed.resident is previous.feed.resident:
            previous.feed = feed
            return
        strategy, self._inputs = self.distribute_strategy, x
        replicas.check(strategy, self.model, bool(self.jit_compile), state)
        engine, self.engine_reason = self._build_engine()
        with strategy.scope():
            self._rounds = loop.Rounds(
                Round(self.plan, engine.function, engine, list(engine.block_of_variable)),
                feed,
                self.optimizer,
                state,
                self._observe,
                self.get_metrics_result,
                rounds_per_call=int(self.steps_per_execution),
                jit_compile=bool(self.jit_compile),
                eagerly=bool(self.run_eagerly),
                strategy=strategy if strategy.num_replicas_in_sync > 1 else None,
                clip_state=self._clip_state,
            )

    # Clipping that adapts.

    def _make_clip_state(self) -> dict[str, Any]:
        """The clipping's state as variables that are saved with the model: public, or made of noisy releases."""
        clipping, made = self.plan.clipping, {}
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
        return report.report(*(built or self._build_engine()), self.plan.sampling.shape[1], self._inputs)

    def _observe(self, y: Any, outputs: Any, sample_weight: Any, mask: Any) -> None:
        """Updates the training metrics with the rows of a round; padding is left out."""
        if mask is not None:
            y, outputs, sample_weight = tf.nest.map_structure(
                lambda t: None if t is None else tf.boolean_mask(t, mask), (y, outputs, sample_weight)
            )
        self.compute_metrics(None, y, outputs, sample_weight)

    def _epoch(self, epoch: int, container: keras.callbacks.CallbackList) -> dict[str, Any]:
        self.reset_metrics()
        self._rounds.mean_loss.reset_state()
        start = self._released() - epoch * self.plan.rounds_per_epoch
        if start and self._unfinished != epoch and self.plan.sampling.epoch_is_joint:
            # The draws that this epoch began with are gone; other ones could use an example twice.
            warnings.warn(
                "the unfinished epoch cannot be resumed; the rest of its rounds counts as released", stacklevel=3
            )
            self._record(self.plan.rounds_per_epoch - start)
            return {}
        if not start and self.plan.clipping.needs_public_data:
            self._refresh_from_public(epoch)
        self._unfinished = epoch
        logs: dict[str, Any] = {}
        chunk = int(self.steps_per_execution)
        for draw in loop.draws(self._rounds.feed, self.plan.sampling, self.streams, epoch, start, chunk):
            first, count = self._released(), len(draw.indices)
            if first != epoch * self.plan.rounds_per_epoch + start:
                raise RuntimeError(
                    f"{first} rounds are recorded where this loop released {epoch} epochs and {start} rounds"
                )
            start += count
            position = first - epoch * self.plan.rounds_per_epoch
            container.on_train_batch_begin(position)
            self._record(count)
            logs = self._rounds.run(draw, first, self.streams)
            container.on_train_batch_end(position + count - 1, logs)
            if self.stop_training:
                break
        return logs

    def _evaluate_beside(self, data: Any, batch_size: int | None, steps: int | None) -> dict[str, Any]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
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
