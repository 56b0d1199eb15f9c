"""Batch normalisation outside of training: by the batch at hand, or by statistics of public data."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpbc import _validate
from tfdpbc.data.sources import as_source
from tfdpbc.errors import DataError
from tfdpbc.statistics import moving_statistics

_lock = threading.Lock()
_users: dict[int, int] = {}  # layer → how many blocks of code are in its batch mode now
_here = threading.local()  # .modes: the batch modes that this thread is in, the innermost last


class _Mode:
    """One thread's use of batch mode: the layers, and who is told their statistics."""

    def __init__(self, layers: Sequence[Any], observe: Callable[[Any, Any, Any], None] | None):
        self.layers, self.observe = {id(layer) for layer in layers}, observe


@contextlib.contextmanager
def by_batch(layers: Sequence[Any], observe: Callable[[Any, Any, Any], None] | None = None) -> Iterator[None]:
    """Within it, in this thread, `layers` normalise with the batch they are given, whatever mode the model is called in.

    Nothing is stored, no other layer notices (dropout stays off in inference), and the layers are as before afterwards:
    they are not replaced, their `call` is shadowed while at least one thread is inside.

    Args:
      layers: BatchNormalization layers.
      observe: called with ``(layer, batch mean, batch variance)`` at each call of a layer; momentum < 1 only.
    """
    with _lock:
        for layer in layers:
            if not _users.get(id(layer)):
                _shadow(layer)
            _users[id(layer)] = _users.get(id(layer), 0) + 1
    modes = _here.__dict__.setdefault("modes", [])
    modes.append(_Mode(layers, observe))
    try:
        yield
    finally:
        modes.pop()
        with _lock:
            for layer in layers:
                _users[id(layer)] -= 1
                if not _users[id(layer)]:
                    del _users[id(layer)]
                    _unshadow(layer)


def _shadow(layer: Any) -> None:
    """Puts a function in front of the layer's `call` that obeys this thread's batch mode, if it is in one."""
    original = layer.call
    signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        mode = next((m for m in reversed(getattr(_here, "modes", [])) if id(layer) in m.layers), None)
        if mode is None:
            return original(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.arguments["training"] = True
        values = [(v, v.value) for v in layer.variables]
        if mode.observe is not None:
            # From 0 the layer moves to (1 - momentum) times the batch's statistics.
            zeros = {id(v) for v in (layer.moving_mean, layer.moving_variance)}
            values = [(v, tf.zeros_like(value) if id(v) in zeros else value) for v, value in values]
        with keras.StatelessScope(values) as scope:
            outputs = original(*bound.args, **bound.kwargs)
        if mode.observe is not None:
            moved = [scope.get_current_value(v) for v in (layer.moving_mean, layer.moving_variance)]
            mode.observe(layer, *(tf.cast(value, tf.float32) / (1.0 - layer.momentum) for value in moved))
        return outputs

    call.__signature__ = signature
    call.shadowed = vars(layer).get("call")  # an attribute of the user's own, to be put back
    vars(layer)["call"] = call


def _unshadow(layer: Any) -> None:
    call = vars(layer).pop("call")
    if call.shadowed is not None:
        vars(layer)["call"] = call.shadowed


def inference(model: keras.Model, layers: Sequence[Any]) -> Callable[[Any], Any]:
    """The model's forward pass in inference mode, but with `layers` normalising by the batch."""

    def forward(inputs: Any) -> Any:
        with by_batch(layers):
            return model(inputs, training=False)

    return forward


class PublicStatistics:
    """Computes the moving statistics of `layers` from public data.

    The model runs over the data in batches that normalise by themselves, as contributions do in training; other layers are
    in inference mode. The statistics are pooled over the batches: a layer's variance is the mean of the batches' variances
    and the variance of their means.

    Args:
      model: a built Keras model.
      layers: BatchNormalization layers of it; those of momentum 1 are left alone, as training leaves them.
    """

    def __init__(self, model: keras.Model, layers: Sequence[Any]):
        self.model, self.given = model, list(layers)
        self.layers = [layer for layer in layers if layer.momentum < 1]
        self._called: list[Any] = []  # the layers in the order in which the traced pass calls them
        self._statistics = tf.function(self._of_one_batch, autograph=False, reduce_retracing=True)

    def _of_one_batch(self, inputs: Any) -> list[tuple[Any, Any]]:
        found: list[tuple[Any, Any, Any]] = []
        with by_batch(self.layers, observe=lambda *seen: found.append(seen)):
            self.model(inputs, training=False)
        self._called = [layer for layer, _, _ in found]
        return [(mean, variance) for _, mean, variance in found]

    def recompute(self, x: Any, batch_size: int) -> None:
        """Sets the statistics to those of all examples of `x`; a last batch that is not full is left out.

        Args:
          x: inputs, in any of the forms of `as_source`; labels are not looked at.
          batch_size: examples per batch, at least 2.

        Raises:
          DataError: fewer than two examples, or statistics that are not finite; nothing was changed.
        """
        batch_size = _validate.integer("batch_size", batch_size, at_least=2)
        source = as_source(x, None, None)
        if len(source) < 2:
            raise DataError(f"x must hold at least 2 examples, whose statistics are taken; got {len(source)}")
        batch_size, pooled = min(batch_size, len(source)), {}
        for start in range(0, len(source) - batch_size + 1, batch_size):
            inputs, _, _ = source.gather(np.arange(start, start + batch_size))
            given = self._statistics(tf.nest.map_structure(tf.convert_to_tensor, inputs))
            for layer, (mean, variance) in zip(self._called, given, strict=True):
                mean, variance = mean.numpy(), variance.numpy()
                if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
                    raise DataError(f"x must give finite statistics; got others in layer {layer.name!r}")
                pooled.setdefault(id(layer), _Pooled()).add(mean, variance)
        for layer in self.layers:
            if id(layer) in pooled:
                for variable, value in zip(moving_statistics([layer]), pooled[id(layer)].values(), strict=True):
                    variable.assign(value)


class _Pooled:
    """Mean and variance of batches of one size, pooled in float64."""

    def __init__(self) -> None:
        self._count, self._mean, self._within, self._between = 0, 0.0, 0.0, 0.0

    def add(self, mean: np.ndarray, variance: np.ndarray) -> None:
        self._count += 1
        step = mean.astype(np.float64) - self._mean
        self._mean = self._mean + step / self._count
        self._between = self._between + step * (mean - self._mean)  # Welford
        self._within = self._within + variance.astype(np.float64)

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        return self._mean, (self._within + self._between) / self._count
