"""Random changes of images, each on its own.

No image may see another one: under individual clipping that is what the guarantee rests on. Constants that normalise are
no part of an augmentation: they also apply when a model is used, so they belong into the model (`models.build(...,
standardize=...)`), and they must be public.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tfdpbc import _validate

MARGINS = ("zeros", "reflect")


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Shifts and mirrors images: a margin of `pad` pixels, a random crop of the old size, a random flip.

    All images of a batch are changed at once; what happens to one depends on its pixels and its seed alone. With the
    defaults this is the augmentation of paper B (pad 4, crop, horizontal flip; its normalisation belongs into the model).

    Args:
      pad: pixels of margin on each side, >= 0. The (2 pad + 1)^2 shifts are equally likely.
      flip: mirror left and right with probability 1/2.
      margin: what the margin holds: `"zeros"`, or the image mirrored at its edge (`"reflect"`).
    """

    pad: int = 4
    flip: bool = True
    margin: str = "zeros"

    def __post_init__(self) -> None:
        _validate.integer("pad", self.pad, at_least=0)
        _validate.instance("flip", self.flip, bool, "True or False")
        _validate.choice("margin", self.margin, MARGINS)

    def to_config(self) -> dict[str, Any]:
        """The fields, ready for JSON; `Augmentation(**config)` takes them back."""
        return dataclasses.asdict(self)

    def check(self, x: Any) -> None:
        """Refuses inputs that are not one batch of images.

        Raises:
          ValueError: `x` is not one tensor [n, height, width, channels], or too small to be mirrored at its edge.
        """
        import tensorflow as tf

        shapes = [tuple(leaf.shape[1:]) for leaf in tf.nest.flatten(x)]
        if tf.nest.is_nested(x) or len(shapes[0]) != 3 or None in shapes[0]:
            _validate.fail(
                "augment",
                "a function of one example and its seed where the inputs are not images (height, width, channels) of "
                f"one size; the inputs have shape {shapes}",
                self,
            )
        if self.margin == "reflect" and self.pad >= min(shapes[0][:2]):
            _validate.fail("pad", f"less than the images' sides {shapes[0][:2]} with margin='reflect'", self.pad)

    def __call__(self, x: Any, seeds: Any) -> Any:
        """Changed images.

        Args:
          x: [n, height, width, channels], any numeric type.
          seeds: int64 [n, 2], independent and uniform.
        """
        import tensorflow as tf

        self.check(x)
        height, width = x.shape[1:3]
        places = tf.constant(2 * self.pad + 1, tf.int64)
        # Of 2**31 values for each number: no shift is likelier than another by more than 2**-31 * places.
        bits = tf.bitcast(seeds, tf.int32)  # [n, 2, 2]
        down, right, mirrored = (
            tf.bitwise.bitwise_and(tf.cast(bits[:, i, j], tf.int64), 2**31 - 1) for i, j in ((0, 0), (0, 1), (1, 0))
        )
        rows = (down % places)[:, None] + tf.range(height, dtype=tf.int64)
        columns = (right % places)[:, None] + tf.range(width, dtype=tf.int64)
        if self.flip:
            columns = tf.where((mirrored % 2 == 0)[:, None], columns, tf.reverse(columns, [1]))
        kind = "REFLECT" if self.margin == "reflect" else "CONSTANT"
        p = self.pad
        wide = tf.pad(x, [[0, 0], [p, p], [p, p], [0, 0]], kind) if p else x
        # Rows and then columns are looked up whole, twice as fast as single pixels; each image looks into itself.
        cut = tf.gather(wide, tf.cast(rows, tf.int32), batch_dims=1, axis=1)
        cut = tf.gather(tf.transpose(cut, [0, 2, 1, 3]), tf.cast(columns, tf.int32), batch_dims=1, axis=1)
        return tf.transpose(cut, [0, 2, 1, 3])
