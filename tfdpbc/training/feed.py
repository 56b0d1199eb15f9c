"""How examples reach the round: resident on the device where they fit, else gathered on the host one chunk ahead."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from tfdpbc.data.sources import Source

RESIDENT_BYTES = 2**31
"""Data sets up to this size live on the device as variables; a round then needs only its indices."""


class Feed:
    """Gives the rounds their examples.

    A round sees a pool (the leaves of ``(x, y, sample_weight)`` with leading axis n) and indices into it. The pool is the
    whole data set, held in variables, or the rows of the current chunk of rounds.

    Args:
      source: the data set.
      like: an earlier feed whose variables are taken over where they fit, so that functions compiled for them stay valid.

    Attributes:
      resident: the pool's leaves as variables, or None.
    """

    def __init__(self, source: Source, like: Feed | None = None):
        self.source = source
        whole = source.tensors
        example = source.gather(np.zeros([1], np.int64)) if whole is None else whole
        self.structure = tf.nest.map_structure(lambda leaf: leaf is not None, example)
        leaves = present(example)
        self.signature = (str(self.structure), *((leaf.shape[1:], leaf.dtype.name) for leaf in leaves))
        self.specs = [tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype) for leaf in leaves]
        self.resident: list[tf.Variable] | None = None
        if whole is None or sum(leaf.nbytes for leaf in leaves) > RESIDENT_BYTES:
            return
        if like is not None and like.resident is not None and like.signature == self.signature:
            self.resident = like.resident
            for variable, leaf in zip(self.resident, leaves, strict=True):
                variable.assign(tf.zeros([0, *leaf.shape[1:]], variable.dtype))  # the former data leave memory first
                variable.assign(leaf)
        else:
            self.resident = [tf.Variable(leaf, False, shape=[None, *leaf.shape[1:]]) for leaf in leaves]

    def __len__(self) -> int:
        return len(self.source)

    def rows(self, indices: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """The leaves to hand over with `indices` (none if the pool is resident), and the indices into the pool."""
        if self.resident is not None:
            return [], indices
        rows = present(self.source.gather(indices.reshape(-1)))
        return rows, np.arange(indices.size, dtype=np.int32).reshape(indices.shape)

    def pack(self, leaves: list[Any]) -> tuple[Any, Any, Any]:
        """``(x, y, sample_weight)`` from the pool's leaves."""
        left = iter(leaves)
        return tf.nest.map_structure(lambda there: next(left) if there else None, self.structure)


def present(nest: Any) -> list[Any]:
    """The leaves of a nest that are not None."""
    return [leaf for leaf in tf.nest.flatten(nest) if leaf is not None]


def ahead(items: Iterator[Any]) -> Iterator[Any]:
    """Yields `items`, preparing the next one in a thread while the current one is used."""
    end = object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="tfdpbc-feed") as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield item
