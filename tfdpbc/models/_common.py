"""What the model functions share: checks of their arguments, seeded initial weights, the logits layer."""

from __future__ import annotations

import math
from typing import Any

from tfdpbc import _validate
from tfdpbc.random import Streams


class Initializers:
    """Glorot-uniform initializers, one per layer: a stream each under a seed, Keras's global state without one."""

    def __init__(self, seed: int | None):
        self._streams = None if seed is None else Streams(seed)
        self._count = 0

    def __call__(self) -> Any:
        import keras

        seed = None
        if self._streams is not None:
            seed = int(self._streams.generator("init", self._count).integers(2**31))
            self._count += 1
        return keras.initializers.GlorotUniform(seed)


def image_shape(model: str, input_shape: Any, smallest: int = 1) -> tuple[int, int, int]:
    """Checks (height, width, channels) against the smallest height and width the model can take."""
    shape = _shape(input_shape)
    if len(shape) != 3:
        _validate.fail("input_shape", f"(height, width, channels) for {model}", tuple(input_shape))
    if min(shape[:2]) < smallest:
        _validate.fail("input_shape", f"at least {smallest} x {smallest} pixels for {model}", shape)
    return shape


def any_shape(model: str, input_shape: Any) -> tuple[int, ...]:
    """Checks the shape of one example of any rank >= 1."""
    shape = _shape(input_shape)
    if not shape:
        _validate.fail("input_shape", f"of at least one dimension for {model}", shape)
    return shape


def _shape(input_shape: Any) -> tuple[int, ...]:
    if isinstance(input_shape, (str, bytes)) or not hasattr(input_shape, "__iter__"):
        _validate.fail("input_shape", "a sequence of integers", input_shape, TypeError)
    return tuple(_validate.integer("input_shape", size, at_least=1) for size in input_shape)


def standardized(inputs: Any, standardize: tuple[Any, Any] | None) -> Any:
    """``(inputs - mean) / deviation`` by fixed constants, inside the model so that they also apply when it is used.

    Args:
      standardize: (mean, deviation), each a sequence of one number or one for each channel. They must be public: those of
        the private data would be a release of their own (`data.NORMALIZATION` has those of public data sets). None: as is.
    """
    import keras

    if standardize is None:
        return inputs
    lengths = {1, inputs.shape[-1]}
    try:
        mean, deviation = ([_validate.number("standardize", value) for value in part] for part in standardize)
    except TypeError:
        mean = deviation = []
    if len(mean) not in lengths or len(deviation) not in lengths or min(deviation) <= 0:
        _validate.fail("standardize", "(mean, deviation > 0), numbers for all or each of the channels", standardize)
    size = max(len(mean), len(deviation))
    mean, deviation = (part * (size // len(part)) for part in (mean, deviation))
    offset = [-m / d for m, d in zip(mean, deviation, strict=True)]
    return keras.layers.Rescaling([1 / d for d in deviation], offset, name="standardize")(inputs)


NORMALIZATIONS = ("none", "batch", "group")


def convolution(
    x: Any, name: str, filters: int, size: int, normalization: str, initializer: Any, **options: Any
) -> Any:
    """A convolution and the normalisation after it, which makes its bias useless: it would be cancelled and take noise."""
    import keras

    bias = normalization == "none"
    layer = keras.layers.Conv2D(filters, size, use_bias=bias, kernel_initializer=initializer, name=name, **options)
    return normalized(layer(x), f"{name}_norm", normalization)


def normalized(x: Any, name: str, normalization: str) -> Any:
    """`x` after a normalisation of one of `NORMALIZATIONS`."""
    import keras

    if _validate.choice("normalization", normalization, NORMALIZATIONS) == "batch":
        return keras.layers.BatchNormalization(name=name)(x)
    if normalization == "group":
        return keras.layers.GroupNormalization(math.gcd(32, x.shape[-1]), name=name)(x)
    return x


def logits(num_classes: int, initializer: Any) -> Any:
    """The last layer. Float32 whatever the dtype policy: the loss must not overflow under mixed precision."""
    import keras

    units = _validate.integer("num_classes", num_classes, at_least=2)
    return keras.layers.Dense(units, kernel_initializer=initializer, dtype="float32", name="logits")
