"""A loss of the user's own, computed for each contribution by itself, so that it cannot couple contributions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdpbc.gradients.losses import PerExampleLoss
from tfdpbc.gradients.onepass import rowwise


class MappedLoss:
    """`loss` mapped over the k contributions of a flat batch: each call sees the rows of one contribution only.

    That is what engines that compute contributions one by one give it, whatever it does with its rows.
    """

    def __init__(self, loss: PerExampleLoss, contributions: int):
        self.loss, self.contributions = loss, contributions

    @classmethod
    def where_needed(cls, loss: PerExampleLoss, contributions: int) -> PerExampleLoss | MappedLoss:
        """`loss` itself if it is known to treat rows on their own."""
        return loss if cls.knows(loss) else cls(loss, contributions)

    @staticmethod
    def knows(loss: PerExampleLoss) -> bool:
        """Whether all losses of `loss` are known to treat rows on their own."""
        entries = loss.loss
        entries = list(entries.values()) if isinstance(entries, Mapping) else entries
        entries = entries if isinstance(entries, (list, tuple)) else [entries]
        return all(entry is None or rowwise.is_rowwise_loss(entry) for entry in entries)

    def __call__(self, y: Any, outputs: Any, sample_weight: Any = None) -> tf.Tensor:
        masks = tf.nest.map_structure(lambda t: getattr(t, "_keras_mask", None), outputs)
        structure = (y, outputs, sample_weight, masks)
        flat = tf.nest.flatten(structure)

        def one(leaves: Any) -> Any:
            left = iter(leaves)
            y, outputs, sample_weight, masks = tf.nest.pack_sequence_as(
                structure, [None if leaf is None else next(left) for leaf in flat]
            )
            for output, mask in zip(tf.nest.flatten(outputs), tf.nest.flatten(masks), strict=True):
                if mask is not None:
                    output._keras_mask = mask
            return self.loss(y, outputs, sample_weight)

        split = [
            tf.reshape(t, [self.contributions, -1, *t.shape[1:]])
            for t in (tf.convert_to_tensor(leaf) for leaf in flat if leaf is not None)
        ]
        return tf.reshape(tf.vectorized_map(one, split), [-1])
