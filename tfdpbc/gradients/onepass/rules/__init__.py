"""The built-in layer rules, one file per kind of layer; importing this package registers them."""

from tfdpbc.gradients.onepass.rules import (
    applications,
    conv,
    conv2d,
    dense,
    einsum,
    embedding,
    normalization,
    prelu,
    recurrent,
    time_distributed,
)

__all__ = [
    "applications",
    "conv",
    "conv2d",
    "dense",
    "einsum",
    "embedding",
    "normalization",
    "prelu",
    "recurrent",
    "time_distributed",
]
