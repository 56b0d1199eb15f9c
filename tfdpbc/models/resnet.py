"""ResNet-18 in its variant for small images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfdpbc.models import _common

if TYPE_CHECKING:
    import keras

_STAGES = (64, 128, 256, 512)  # filters; two blocks each


def resnet18(
    input_shape: tuple[int, int, int],
    num_classes: int,
    normalization: str = "group",
    activation: str = "relu",
    seed: int | None = None,
    standardize: tuple[Any, Any] | None = None,
) -> keras.Model:
    """conv 64 @ 3x3, four stages of two basic blocks (64, 128, 256, 512 filters), global average, dense to the classes.

    The CIFAR variant of He, Zhang, Ren, Sun (2016): the first convolution has stride 1 and no pooling follows it. 11.2
    million parameters. With normalisation 41 trainable layers (20 convolutions, 20 normalisations, the last layer) that
    hold 62 parameter tensors, which is what paper B counts.

    Args:
      input_shape: (height, width, channels), at least 8 x 8.
      num_classes: number of classes, >= 2.
      normalization: "group" (32 groups; works with every clipping), "batch" or "none".
      activation: a Keras activation.
      seed: fixes the initial weights.
      standardize: public (mean, deviation) of the channels, which the model takes from its inputs; None for none.
    """
    import keras

    shape = _common.image_shape("resnet18", input_shape, smallest=8)
    initializer = _common.Initializers(seed)

    def convolution(x: Any, name: str, filters: int, size: int = 3, strides: int = 1) -> Any:
        options = {"strides": strides, "padding": "same"}
        return _common.convolution(x, name, filters, size, normalization, initializer(), **options)

    def block(x: Any, name: str, filters: int, strides: int) -> Any:
        shortcut = x
        x = keras.layers.Activation(activation, name=f"{name}_activation1")(
            convolution(x, f"{name}_conv1", filters, strides=strides)
        )
        x = convolution(x, f"{name}_conv2", filters)
        if strides > 1 or shortcut.shape[-1] != filters:
            shortcut = convolution(shortcut, f"{name}_shortcut", filters, 1, strides)
        x = keras.layers.Add(name=f"{name}_add")([x, shortcut])
        return keras.layers.Activation(activation, name=f"{name}_activation2")(x)

    inputs = keras.Input(shape, name="image")
    x = convolution(_common.standardized(inputs, standardize), "conv1", _STAGES[0])
    x = keras.layers.Activation(activation, name="activation1")(x)
    for stage, filters in enumerate(_STAGES, start=1):
        for number in (1, 2):
            x = block(x, f"stage{stage}_block{number}", filters, 2 if stage > 1 and number == 1 else 1)
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, _common.logits(num_classes, initializer())(x), name="resnet18")
