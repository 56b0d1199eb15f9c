"""BN-LeNet-5, the modified LeNet-5 of paper B (its Table 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfdpbc import _validate
from tfdpbc.models import _common

if TYPE_CHECKING:
    import keras

_SIDE = 32  # LeNet-5 was made for 32 x 32: C5 then sees exactly 5 x 5


def bn_lenet5(
    input_shape: tuple[int, int, int],
    num_classes: int,
    normalization: str = "batch",
    activation: str = "relu",
    pooling: str = "average",
    seed: int | None = None,
    standardize: tuple[Any, Any] | None = None,
) -> keras.Model:
    """LeNet-5 in its original three-convolution form, with batch normalisation after each convolution.

    C1 (6 @ 5x5), pool, C3 (16 @ 5x5), pool, C5 (120 @ 5x5), F6 (dense 84), dense to the classes. With batch
    normalisation it has 8 trainable layers, the L = 8 of paper B. Images smaller than 32 x 32 are padded with zeros
    inside the model; from larger ones C5 gives more than one position, all of which F6 sees.

    Args:
      input_shape: (height, width, channels).
      num_classes: number of classes, >= 2.
      normalization: "batch" (8 trainable layers), "group" (8) or "none" (5).
      activation: a Keras activation, after each normalised convolution and after F6.
      pooling: "average" (as LeNet-5's subsampling) or "max".
      seed: fixes the initial weights.
      standardize: public (mean, deviation) of the channels, which the model takes from its inputs; None for none.
    """
    import keras

    height, width, channels = _common.image_shape("bn_lenet5", input_shape)
    pools = {"average": keras.layers.AveragePooling2D, "max": keras.layers.MaxPooling2D}
    pool = pools[_validate.choice("pooling", pooling, pools)]
    initializer = _common.Initializers(seed)
    inputs = keras.Input((height, width, channels), name="image")
    x = _common.standardized(inputs, standardize)
    rows, columns = (max(0, _SIDE - size) for size in (height, width))
    if rows or columns:
        margins = ((rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2))
        x = keras.layers.ZeroPadding2D(margins, name="pad")(x)
    for name, filters in (("c1", 6), ("c3", 16), ("c5", 120)):
        x = _common.convolution(x, name, filters, 5, normalization, initializer())
        x = keras.layers.Activation(activation, name=f"{name}_activation")(x)
        if name != "c5":
            x = pool(2, name=f"{name}_pool")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    x = keras.layers.Dense(84, activation=activation, kernel_initializer=initializer(), name="f6")(x)
    return keras.Model(inputs, _common.logits(num_classes, initializer())(x), name="bn_lenet5")
