"""Augmentation inside a round: every example K times, each time changed on its own, all in its own contribution.

A row may not see another one: under individual clipping that is what the guarantee rests on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdpbc import _validate
from tfdpbc.data.augmentation import Augmentation
from tfdpbc.errors import IncompatibleModel
from tfdpbc.gradients.function import WRITING, Evaluation, Examples

_STREAM = 0x61756720  # folded into the round's layer key: far from the replica numbers that are folded into it too


class Augmenter:
    """Repeats and changes the examples of contributions.

    A contribution of s examples becomes one of s K rows whose algorithm divides by s K: the mean gradient over the K
    augmentations of its examples, clipped as one (De, Berrada, Hayes, Smith, Balle, "Unlocking High-Accuracy
    Differentially Private Image Classification through Scale", 2022). It still depends on its own examples alone and is
    clipped to the same norm, so nothing changes for the guarantee.

    Args:
      change: ``(x [n, ...], seeds int64 [n, 2]) -> x``, which treats rows on their own (see `rowwise`).
      repeats: K.
    """

    def __init__(self, change: Any, repeats: int = 1):
        self.change, self.repeats = change, repeats

    def check(self, x: Any) -> None:
        """Refuses what `change` cannot change; `x` is the input of some examples."""
        self.change.check(x)

    def seeds(self, layer_key: Any, contributions: int, examples: int) -> Any:
        """Independent seeds int64 ``[m, s K, 2]`` for a round; they do not depend on how it is cut into passes."""
        # Philox by name: left to choose, TensorFlow draws by another algorithm under XLA.
        key = tf.random.experimental.stateless_fold_in(layer_key, tf.constant(_STREAM, tf.int64), alg="philox")
        shape = [contributions, examples * self.repeats, 2]
        return tf.random.stateless_uniform(shape, key, minval=None, maxval=None, dtype=tf.int64, alg="philox")

    def rows(self, batch: Examples, seeds: Any) -> Examples:
        """The examples ``[k, s]`` of `batch`, K rows after each other for each, changed: ``[k, s K]``."""
        if self.repeats > 1:
            x, y, sample_weight, mask = tf.nest.map_structure(
                lambda t: None if t is None else tf.repeat(t, self.repeats, axis=1),
                (batch.x, batch.y, batch.sample_weight, batch.mask),
            )
            batch = Examples(x, y, sample_weight, mask, batch.seeds)
        k, rows = batch.mask.shape
        flat = tf.nest.map_structure(lambda t: tf.reshape(t, [k * rows, *t.shape[2:]]), batch.x)
        changed = self.change(flat, tf.reshape(seeds, [k * rows, 2]))
        x = tf.nest.map_structure(lambda t, like: tf.reshape(t, like.shape), changed, batch.x)
        return dataclasses.replace(batch, x=x)

    def once(self, evaluation: Evaluation) -> Evaluation:
        """Each example once again, for loss and metrics: its mean loss, and the outputs of its first augmentation."""
        if self.repeats == 1:
            return evaluation
        losses, outputs = tf.nest.map_structure(
            lambda t: tf.reshape(t, [t.shape[0], -1, self.repeats, *t.shape[2:]]),
            (evaluation.losses, evaluation.outputs),
        )
        outputs = tf.nest.map_structure(lambda t: t[:, :, 0], outputs)
        return dataclasses.replace(evaluation, losses=tf.reduce_mean(losses, axis=2), outputs=outputs)


@dataclasses.dataclass(frozen=True)
class PerRow:
    """A user's function ``(row, seed) -> row`` on a batch, called for one row at a time, so that no row can see another.

    Args:
      function: takes the input of one example (a nest of tensors without the axis of rows) and a seed, int64 [2], for
        stateless operations (`tf.image.stateless_random_crop`, ...); returns the same structure, shapes and types. It must
        be made of TensorFlow operations and may keep nothing. What it closes over must be public.
    """

    function: Callable[[Any, Any], Any]

    def check(self, x: Any) -> None:
        """Traces the function for rows like those of `x`; errors as for `__call__`."""
        self._traced(x)

    def __call__(self, x: Any, seeds: Any) -> Any:
        """The batch `x`, each leaf [n, ...], after the function; `seeds` is int64 [n, 2].

        Raises:
          ValueError: the function changes the structure, a shape or a type.
          IncompatibleModel: the function writes to a variable, prints or runs Python code.
        """
        function, spec = self._traced(x), tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape[1:], t.dtype), x)
        # Not vectorized_map: some operations abort the process in it, and many fall back to this loop anyway.
        changed = tf.map_fn(lambda row: function(*row), (x, seeds), fn_output_signature=spec)
        return tf.nest.map_structure(lambda t, like: tf.ensure_shape(t, like.shape), changed, x)

    def _traced(self, x: Any) -> Any:
        spec = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape[1:], t.dtype), x)
        traced = tf.function(self.function).get_concrete_function(spec, tf.TensorSpec([2], tf.int64))
        found = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), traced.structured_outputs)
        if not _alike(found, spec):
            expected = f"a function whose result is like its row, {_words(spec)}; it returns {_words(found)}"
            _validate.fail("augment", expected, self.function)
        definition = traced.graph.as_graph_def()
        nodes = [*definition.node, *(node for f in definition.library.function for node in f.node_def)]
        for node in nodes:
            if node.op.startswith((*WRITING, "Print")):
                raise IncompatibleModel(
                    f"augment must keep nothing of a row and run no Python code; got the operation {node.op} "
                    f"({node.name}). Draw from the seed it is given (tf.random.stateless_uniform, tf.image.stateless_*)"
                )
        return traced


def rowwise(augment: Any) -> Any:
    """`augment` as a callable ``(x [n, ...], seeds [n, 2]) -> x`` that treats rows on their own, with a `check`; or None.

    Raises:
      TypeError: it is neither an `Augmentation` nor a function.
    """
    if augment is None or isinstance(augment, Augmentation):
        return augment
    if not callable(augment) or isinstance(augment, keras.layers.Layer):  # a layer belongs into the model
        _validate.fail("augment", "an Augmentation or a function (row, seed) -> row", augment, TypeError)
    return PerRow(augment)


def _alike(found: Any, wanted: Any) -> bool:
    try:
        tf.nest.assert_same_structure(found, wanted)
    except (TypeError, ValueError):
        return False
    pairs = zip(tf.nest.flatten(found), tf.nest.flatten(wanted), strict=True)
    return all(a.dtype == b.dtype and a.shape.is_compatible_with(b.shape) for a, b in pairs)


def _words(spec: Any) -> str:
    return str(tf.nest.map_structure(lambda leaf: f"{leaf.dtype.name}{leaf.shape}", spec))
