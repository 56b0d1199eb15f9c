"""Records what each layer with a rule computes during one forward pass, without changing the model.

While a forward pass is traced, the `call` of each such layer is replaced on the instance (Keras looks it up there) and put
back afterwards, whatever happens. The replacement acts for the recording thread only: other threads that use the model
meanwhile run the layer's own `call`. Weights are stopped inside a recorded call, so that the tape still sees, and the
engine can refuse, every other way a weight takes to the loss.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

LOCK = threading.RLock()
_local = threading.local()


@dataclasses.dataclass
class Call:
    """One recorded call of a layer on the rows of k contributions of s examples, n = k s rows in all.

    Attributes:
      args, kwargs: as the layer's `call` was given them; tensors have n rows.
      taps: the tensors that the rule tapped, n rows each.
      gradients: of the sum of all contributions' objectives with respect to the taps; None where the loss does not use
        a tap.
      k, s: contributions, and examples in each.
      value_of: ``value_of(variable)`` is the variable's value in this forward pass, a tensor.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    taps: list[Any]
    k: int
    s: int
    value_of: Callable[[Any], Any]
    gradients: list[Any] = dataclasses.field(default_factory=list)

    @property
    def inputs(self) -> Any:
        """The first argument of the call."""
        return self.args[0] if self.args else next(iter(self.kwargs.values()))

    @property
    def gradient(self) -> Any:
        """The gradient of the only tap."""
        (gradient,) = self.gradients
        return gradient

    def split(self, rows: Any) -> Any:
        """``[n, ...]`` as ``[k, s, ...]``."""
        return tf.reshape(rows, [self.k, self.s, *rows.shape[1:]])

    def positions(self, rows: Any) -> Any:
        """``[n, ..., p]`` as float32 ``[k, T, p]``: T counts the contribution's examples and the axes between."""
        return tf.reshape(tf.cast(rows, tf.float32), [self.k, -1, rows.shape[-1]])


class Recorder:
    """Calls of one forward pass, in order.

    Args:
      rules: (layer, rule) of each layer to record, each layer once.
      tape: an active gradient tape.
      weights: id of variable → its value in this pass.
      k, s: contributions, and examples in each.
    """

    def __init__(self, rules: list[tuple[Any, Any]], tape: tf.GradientTape, weights: dict[int, Any], k: int, s: int):
        self.rules, self.tape, self.weights, self.k, self.s = rules, tape, weights, k, s
        self.calls: list[tuple[Any, Any, Call]] = []
        self._inside = False

    def run(self, layer: Any, rule: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The layer's output; records the call."""
        call = Call(args, kwargs, [], self.k, self.s, self._value_of)

        def tap(t: Any) -> Any:
            self.tape.watch(t)
            call.taps.append(t)
            return t

        self._inside = True
        try:
            with _stopped(layer, self.weights):
                outputs = rule.call(layer, tap, *args, **kwargs)
        finally:
            self._inside = False
        self.calls.append((layer, rule, call))
        return outputs

    def _value_of(self, variable: Any) -> Any:
        if id(variable) in self.weights:
            return self.weights[id(variable)]
        return tf.convert_to_tensor(variable.value)  # frozen

    def hook(self, layer: Any, rule: Any) -> Callable[..., Any]:
        original = layer.call

        def call(*args: Any, **kwargs: Any) -> Any:
            # Inside a rule, a sublayer is part of what the rule computes.
            if getattr(_local, "recorder", None) is not self or self._inside:
                return original(*args, **kwargs)
            return self.run(layer, rule, args, kwargs)

        return call


@contextlib.contextmanager
def _stopped(layer: Any, weights: dict[int, Any]) -> Iterator[None]:
    """Runs a layer at `weights` without letting the tape see them; what it writes to other variables is kept."""
    mapping = {id(v): (v, tf.stop_gradient(weights[id(v)])) for v in layer.variables if id(v) in weights}
    others = [(v, v.value) for v in layer.variables if id(v) not in weights]
    with keras.StatelessScope([*mapping.values(), *others]) as scope:
        before = [scope.get_current_value(v) for v, _ in others]
        yield
    for (variable, _), old in zip(others, before, strict=True):
        new = scope.get_current_value(variable)
        if new is not old:
            variable.assign(new)


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Records the calls of the recorder's layers on this thread; leaves the layers as they were."""
    with LOCK:  # one recording at a time: two of them would restore each other's hooks
        saved = [(layer, vars(layer).get("call")) for layer, _ in recorder.rules]
        previous = getattr(_local, "recorder", None)
        _local.recorder = recorder
        try:
            for layer, rule in recorder.rules:
                object.__setattr__(layer, "call", recorder.hook(layer, rule))
            yield
        finally:
            _local.recorder = previous
            for layer, own in saved:
                if own is not None:
                    object.__setattr__(layer, "call", own)
                elif "call" in vars(layer):
                    object.__delattr__(layer, "call")
