"""The lightweight convolutional network of paper B (its Table 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfdpbc.models import _common

if TYPE_CHECKING:
    import keras

_FILTERS = (32, 64, 64, 128)


def convnet(
    input_shape: tuple[int, int, int],
    num_classes: int,
    normalization: str = "none",
    activation: str = "relu",
    seed: int | None = None,
    standardize: tuple[Any, Any] | None = None,
) -> keras.Model:
    """Four blocks CONV → normalisation → average POOL, then a softmax layer (as logits).

    The paper's text does not give the numbers of filters; 32, 64, 64, 128 filters of 3 x 3 and a global average in the
    last block are those of the small CIFAR-10 network that the examples of the field share. The activation stands
    between normalisation and pooling.

    Args:
      input_shape: (height, width, channels), at least 8 x 8.
      num_classes: number of classes, >= 2.
      normalization: "none" (5 trainable layers, the L of layer-wise clipping), "batch" (as in the paper, 9) or "group".
      activation: a Keras activation.
      seed: fixes the initial weights.
      standardize: public (mean, deviation) of the channels, which the model takes from its inputs; None for none.
    """
    import keras

    shape = _common.image_shape("convnet", input_shape, smallest=8)
    initializer = _common.Initializers(seed)
    inputs = keras.Input(shape, name="image")
    x = _common.standardized(inputs, standardize)
    for block, filters in enumerate(_FILTERS, start=1):
        x = _common.convolution(x, f"conv{block}", filters, 3, normalization, initializer(), padding="same")
        x = keras.layers.Activation(activation, name=f"activation{block}")(x)
        name = f"pool{block}"
        if block < len(_FILTERS):
            x = keras.layers.AveragePooling2D(2, name=name)(x)
        else:
            x = keras.layers.GlobalAveragePooling2D(name=name)(x)
    return keras.Model(inputs, _common.logits(num_classes, initializer())(x), name="convnet")
