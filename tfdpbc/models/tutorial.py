"""The small convolutional network that the tutorials of the field train on MNIST."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfdpbc.models import _common

if TYPE_CHECKING:
    import keras


def tutorial_cnn(
    input_shape: tuple[int, int, int],
    num_classes: int,
    activation: str = "tanh",
    seed: int | None = None,
    standardize: tuple[Any, Any] | None = None,
) -> keras.Model:
    """conv 16 @ 8x8 stride 2, max pool, conv 32 @ 4x4 stride 2, max pool, dense 32, dense: 26,010 parameters on 28 x
    28 x 1.

    The network of the MNIST tutorials of TF-Privacy and Opacus. There it has ReLU; bounded activations lose less under
    clipping and noise (Papernot et al., "Tempered Sigmoid Activations for Deep Learning with Differential Privacy",
    AAAI 2021), hence tanh here.

    Args:
      input_shape: (height, width, channels), at least 13 x 13.
      num_classes: number of classes, >= 2.
      activation: a Keras activation.
      seed: fixes the initial weights.
      standardize: public (mean, deviation) of the channels, which the model takes from its inputs; None for none.
    """
    import keras

    layers = keras.layers
    shape = _common.image_shape("tutorial_cnn", input_shape, smallest=13)
    initializer = _common.Initializers(seed)
    inputs = keras.Input(shape, name="image")
    x = _common.standardized(inputs, standardize)
    options = {"strides": 2, "activation": activation}
    x = layers.Conv2D(16, 8, padding="same", kernel_initializer=initializer(), name="conv1", **options)(x)
    x = layers.MaxPooling2D(2, strides=1, name="pool1")(x)
    x = layers.Conv2D(32, 4, padding="valid", kernel_initializer=initializer(), name="conv2", **options)(x)
    x = layers.MaxPooling2D(2, strides=1, name="pool2")(x)
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(32, activation=activation, kernel_initializer=initializer(), name="dense")(x)
    return keras.Model(inputs, _common.logits(num_classes, initializer())(x), name="tutorial_cnn")
