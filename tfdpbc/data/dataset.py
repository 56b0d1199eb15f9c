"""An image classification data set in memory, and the public constants that normalise it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# (mean, standard deviation) per channel, of pixels scaled to [0, 1]: the numbers published for these public data sets.
# Statistics of the private data would be a release of their own, so every other data set gets GENERIC.
NORMALIZATION = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
GENERIC = ((0.5,), (0.5,))


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images with their classes.

    Attributes:
      x: images [N, height, width, channels], uint8 (other integer types and floats in [0, 1] are possible).
      y: labels [N], int64, in 0..num_classes-1.
      num_classes: the number of classes, known beforehand (not counted in the labels).
      name: the name it was loaded by.
    """

    x: np.ndarray
    y: np.ndarray
    num_classes: int
    name: str

    def __len__(self) -> int:
        return len(self.x)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return self.x.shape[1:]

    def scaled(self) -> np.ndarray:
        """The images as float32 in [0, 1]: divided by the largest value of their integer type, 255 for uint8."""
        if self.x.dtype.kind == "f":
            return self.x.astype(np.float32)
        return self.x.astype(np.float32) / np.float32(np.iinfo(self.x.dtype).max)

    def standardized(self) -> np.ndarray:
        """The scaled images, minus a mean and divided by a deviation that are public: `NORMALIZATION` or `GENERIC`."""
        x = self.scaled()
        mean, deviation = (np.array(values, np.float32) for values in NORMALIZATION.get(self.name, GENERIC))
        x -= mean
        x /= deviation
        return x
