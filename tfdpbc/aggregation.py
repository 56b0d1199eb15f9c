"""Aggregation of clipped contributions: the second factor of the weights."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfdpbc import _validate


@dataclasses.dataclass(frozen=True)
class Sum:
    r"""The plain sum :math:`U = \sum_h [a_h]_C` of Algorithm 1.

    Formal guarantee: one changed contribution moves the sum by no more than it moves the contribution itself, so the
    sensitivity is that of the clipping times the sampling's factor.
    """

    name = "sum"

    def weights(self, clip_weights: Any, valid: Any) -> Any:
        """Final weights ``[m, L]`` from the clipping's ``[m, L]`` and the mask ``[m]`` of contributions that exist."""
        import tensorflow as tf

        return tf.where(valid[:, None], clip_weights, tf.zeros_like(clip_weights))

    def to_config(self) -> dict[str, Any]:
        return {"name": self.name}


by_name = {Sum.name: Sum}


def from_config(config: dict[str, Any]) -> Sum:
    """The inverse of `to_config`."""
    fields = dict(config)
    kind = by_name[_validate.choice("aggregation", fields.pop("name", None), by_name)]
    return kind(**fields)
