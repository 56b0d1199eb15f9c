"""What the model functions share: checks of their arguments, seeded initial weights, the logits layer."""

from __future__ import annotations

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


def logits(num_classes: int, initializer: Any) -> Any:
    """The last layer. Float32 whatever the dtype policy: the loss must not overflow under mixed precision."""
    import keras

    units = _validate.integer("num_classes", num_classes, at_least=2)
    return keras.layers.Dense(units, kernel_initializer=initializer, dtype="float32", name="logits")
