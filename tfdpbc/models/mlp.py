"""A multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfdpbc import _validate
from tfdpbc.models import _common

if TYPE_CHECKING:
    import keras


def mlp(
    input_shape: tuple[int, ...],
    num_classes: int,
    units: Sequence[int] = (512, 512),
    activation: str = "relu",
    seed: int | None = None,
    standardize: tuple[Any, Any] | None = None,
) -> keras.Model:
    """Flatten, dense layers of `units`, dense to the classes: 784-512-512-10 on 28 x 28 x 1.

    Args:
      input_shape: shape of one example, any rank >= 1.
      num_classes: number of classes, >= 2.
      units: widths of the hidden layers; empty for a linear (softmax regression) model.
      activation: a Keras activation.
      seed: fixes the initial weights.
      standardize: public (mean, deviation) of the last axis, which the model takes from its inputs; None for none.
    """
    import keras

    shape = _common.any_shape("mlp", input_shape)
    initializer = _common.Initializers(seed)
    inputs = keras.Input(shape, name="features")
    x = _common.standardized(inputs, standardize)
    if len(shape) > 1:
        x = keras.layers.Flatten(name="flatten")(x)
    for layer, width in enumerate(units, start=1):
        width = _validate.integer("units", width, at_least=1)
        x = keras.layers.Dense(width, activation=activation, kernel_initializer=initializer(), name=f"dense{layer}")(x)
    return keras.Model(inputs, _common.logits(num_classes, initializer())(x), name="mlp")
