"""Per-example values of Keras losses: the loss of one example may not depend on another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdpbc.errors import IncompatibleModel


def _loss_function(loss: Any) -> Any:
    """The unreduced function ``(y_true, y_pred) -> [n, ...]`` behind a Keras loss, a name or a plain function."""
    loss = keras.losses.get(loss)
    return loss.call if isinstance(loss, keras.losses.Loss) else loss


def _as_list(name: str, value: Any, output_names: Sequence[str] | None, count: int) -> list[Any]:
    """Puts a per-output argument of `compile` in the order of the model's outputs."""
    if isinstance(value, Mapping):
        names = list(output_names or [])
        unknown = [key for key in value if key not in names]
        if unknown:
            raise ValueError(f"{name} must name outputs of the model ({names}); got {name}={list(value)}")
        return [value.get(key) for key in names]
    if isinstance(value, (list, tuple)):
        if len(value) != count:
            raise ValueError(f"{name} must have one entry for each of the {count} outputs; got {name}={value!r}")
        return list(value)
    return [value] * count


class PerExampleLoss:
    """The compiled loss as a function of one row: ``(y, outputs, sample_weight) -> float32 [n]``.

    The value of a row is the mean of the loss over its other axes (over its unmasked positions where Keras carries a mask),
    times `loss_weights`, times the row's sample weight, summed over outputs: for equally sized rows their mean is what
    Keras calls the loss.

    Args:
      loss: as for `keras.Model.compile`: one loss, or a list or dict with one entry for each output.
      loss_weights: floats in the same structure, or None.
      output_names: the model's output names, for dict arguments.
    """

    def __init__(self, loss: Any, loss_weights: Any = None, output_names: Sequence[str] | None = None):
        if loss is None:
            raise ValueError("loss must be a Keras loss, its name or a function; got loss=None")
        self.loss, self.loss_weights, self.output_names = loss, loss_weights, output_names

    def __call__(self, y: Any, outputs: Any, sample_weight: Any = None) -> tf.Tensor:
        predictions = _flat(outputs, self.output_names)
        count = len(predictions)
        targets = _flat(y, self.output_names) if count > 1 or isinstance(y, Mapping) else [y]
        if len(targets) != count:
            raise ValueError(f"y must have one entry for each of the model's {count} outputs; got {len(targets)}")
        losses = _as_list("loss", self.loss, self.output_names, count)
        factors = _as_list("loss_weights", self.loss_weights, self.output_names, count)
        weights = _as_list("sample_weight", sample_weight, self.output_names, count)
        total = 0.0
        for loss, target, prediction, factor, weight in zip(
            losses, targets, predictions, factors, weights, strict=True
        ):
            if loss is not None:
                total += _row_values(loss, target, prediction, weight) * (1.0 if factor is None else float(factor))
        return total


def _flat(value: Any, output_names: Sequence[str] | None) -> list[Any]:
    if isinstance(value, Mapping):
        return [value[name] for name in (output_names if output_names and set(output_names) == set(value) else value)]
    return list(value) if isinstance(value, (list, tuple)) else [value]


_ELEMENTWISE = (
    *("binary_crossentropy", "binary_focal_crossentropy", "categorical_crossentropy", "categorical_focal_crossentropy"),
    *("categorical_hinge", "cosine_similarity", "hinge", "huber", "kl_divergence", "log_cosh", "mean_absolute_error"),
    *(
        "mean_absolute_percentage_error",
        "mean_squared_error",
        "mean_squared_logarithmic_error",
        "poisson",
        "squared_hinge",
    ),
)
"""Losses of Keras that compare y with the output number by number."""


def _check_aligned(loss: Any, target: Any, prediction: Any) -> None:
    """Refuses a y that would be broadcast against another axis of the output: its examples would meet all others.

    Keras itself puts an axis of size 1 at the end where one of both lacks it.
    """
    known = keras.losses.get(loss)
    function = getattr(known, "fn", known)
    name = getattr(function, "__name__", "")
    if name not in _ELEMENTWISE or not str(getattr(function, "__module__", "")).startswith("keras."):
        return
    shapes = [list(t.shape) for t in (target, prediction)]
    shorter, longer = sorted(shapes, key=len)
    if len(longer) == len(shorter) + 1 and longer[-1] == 1:
        shorter = [*shorter, 1]
    pairs = zip(shorter, longer, strict=False)
    if len(shorter) != len(longer) or any(m != n and None not in (m, n) and 1 not in (m, n) for m, n in pairs):
        raise ValueError(
            f"y must have the shape of the model's output for the loss {name!r}; got y of shape {shapes[0][1:]} and "
            f"outputs of shape {shapes[1][1:]} for each example"
        )


def _row_values(loss: Any, target: Any, prediction: Any, weight: Any) -> tf.Tensor:
    """Loss of each row ``[n]`` of one output."""
    rows = prediction.shape[0]
    prediction32 = tf.cast(prediction, tf.float32)
    target = tf.convert_to_tensor(target)
    # Keras losses take targets in the predictions' precision; sparse ones cast back to integers themselves.
    target = tf.cast(target, tf.float32) if target.dtype != tf.string else target
    _check_aligned(loss, target, prediction32)
    values = tf.convert_to_tensor(_loss_function(loss)(target, prediction32))
    if values.shape.rank == 0 or (rows is not None and values.shape[0] != rows):
        raise IncompatibleModel(
            "loss must return one value for each example (shape [n] or [n, ...]), so that each example's gradient can be "
            f"bounded; got loss={getattr(loss, '__name__', loss)!r} with values of shape {values.shape.as_list()} "
            f"for {rows} examples"
        )
    values = tf.cast(values, tf.float32)
    position = tf.ones_like(values)
    mask = getattr(prediction, "_keras_mask", None)
    if mask is not None and values.shape.rank > 1:
        mask = tf.cast(tf.reshape(mask, tf.shape(mask)[: values.shape.rank]), tf.float32)
        position = position * mask
    axes = list(range(1, values.shape.rank))
    if weight is not None:
        weight = tf.cast(weight, tf.float32)
        # A weight for each position ([n, T]) weighs it; a weight for each row ([n] or [n, 1]) weighs the row's mean.
        if axes and weight.shape.rank > 1 and weight.shape[1:].num_elements() != 1:
            values = values * tf.reshape(weight, tf.shape(values))
        elif axes:
            values = values * tf.reshape(weight, [-1] + [1] * len(axes))
        else:
            values = values * tf.reshape(weight, [-1])
    if not axes:
        return values
    # where, not a product: a masked position may hold inf or NaN.
    kept = tf.where(position > 0, values, tf.zeros_like(values))
    return tf.math.divide_no_nan(tf.reduce_sum(kept, axes), tf.reduce_sum(position, axes))
