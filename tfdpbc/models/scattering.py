"""Scattering networks: fixed wavelet features, which cost no privacy, and a small network on top, which is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfdpbc import _validate
from tfdpbc.models import _common

if TYPE_CHECKING:
    import keras

_GROUP = 3  # channels normalised together: 81 features give 27 groups


def _front(model: str, input_shape: Any, scales: int, orientations: int, standardize: Any) -> tuple[Any, Any]:
    """(inputs, normalised features): what is fixed."""
    import keras

    from tfdpbc.models.scattering_layer import Scattering2D

    scales = _validate.integer("scales", scales, at_least=1)
    shape = _common.image_shape(model, input_shape, smallest=2**scales)
    inputs = keras.Input(shape, name="image")
    x = Scattering2D(scales, orientations, name="scattering")(_common.standardized(inputs, standardize))
    channels = x.shape[-1]
    groups = channels // _GROUP if channels % _GROUP == 0 else 1
    # Each example by its own mean and deviation: the features have very unequal sizes, and nothing of the data set is used.
    x = keras.layers.GroupNormalization(groups, center=False, scale=False, epsilon=1e-5, name="features")(x)
    return inputs, x


def scattering_linear(
    input_shape: tuple[int, int, int],
    num_classes: int,
    scales: int = 2,
    orientations: int = 8,
    seed: int | None = None,
    standardize: tuple[Any, Any] | None = None,
) -> keras.Model:
    """A linear classifier on normalised scattering features (Tramèr and Boneh, *Differentially Private Learning Needs Better
    Features (or Much More Data)*, ICLR 2021): 39,700 parameters on 28 x 28 x 1.

    Its features are those of `fixed_features`, so they need computing once only.

    Args:
      input_shape: (height, width, channels), at least 2^scales pixels high and wide.
      num_classes: number of classes, >= 2.
      scales: J, the features stand at every 2^J-th pixel.
      orientations: L.
      seed: of no effect, as the weights start at zero; for all models are called alike.
      standardize: public (mean, deviation) of the channels, which the model takes from its inputs; None for none.
    """
    import keras

    inputs, x = _front("scattering_linear", input_shape, scales, orientations, standardize)
    x = keras.layers.Flatten(name="flatten")(x)
    # A convex problem needs no random start, whose scores training would have to undo with noisy steps.
    return keras.Model(inputs, _common.logits(num_classes, keras.initializers.Zeros())(x), name="scattering_linear")


def scattering_cnn(
    input_shape: tuple[int, int, int],
    num_classes: int,
    scales: int = 2,
    orientations: int = 8,
    filters: int = 64,
    activation: str = "tanh",
    seed: int | None = None,
    standardize: tuple[Any, Any] | None = None,
) -> keras.Model:
    """Two small convolutions on normalised scattering features, then a linear classifier, after Tramèr and Boneh (ICLR 2021).

    Its features are those of `fixed_features`, so they need computing once only.

    Args:
      input_shape: (height, width, channels), at least 2^scales pixels high and wide.
      num_classes: number of classes, >= 2.
      scales: J, the features stand at every 2^J-th pixel.
      orientations: L.
      filters: of each of the two 3 x 3 convolutions.
      activation: a Keras activation.
      seed: fixes the initial weights.
      standardize: public (mean, deviation) of the channels, which the model takes from its inputs; None for none.
    """
    import keras

    filters = _validate.integer("filters", filters, at_least=1)
    initializer = _common.Initializers(seed)
    inputs, x = _front("scattering_cnn", input_shape, scales, orientations, standardize)
    for name in ("conv1", "conv2"):
        options = {"padding": "same", "activation": activation, "kernel_initializer": initializer()}
        x = keras.layers.Conv2D(filters, 3, name=name, **options)(x)
        if min(x.shape[1:3]) > 1:
            x = keras.layers.MaxPooling2D(2, name=f"{name}_pool")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    return keras.Model(inputs, _common.logits(num_classes, initializer())(x), name="scattering_cnn")


def fixed_features(model: keras.Model) -> tuple[keras.Model, keras.Model] | None:
    """(front, head) of a scattering network: the fixed features, and what is trained on them; None for other models.

    The layers are shared, so training the head trains the model. The front has no weights and treats each example on its
    own, so its output may be computed once and stored in place of the images.
    """
    import keras

    from tfdpbc.models.scattering_layer import Scattering2D

    layers = {layer.name: layer for layer in model.layers}
    if type(layers.get("scattering")) is not Scattering2D or "features" not in layers:
        return None
    features = layers["features"].output
    front, head = keras.Model(model.input, features, name="front"), keras.Model(features, model.output, name="head")
    return None if front.weights else (front, head)
