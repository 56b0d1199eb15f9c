"""Gradients of one variable, one for each contribution, held in the cheapest form that gives norms and weighted sums.

Every form offers the same three things (k contributions, a variable of shape ``shape``):

- `form`: in words, what the norms are computed from, for reports;
- `squares`: squared Euclidean norms, float32 ``[k]``;
- `weighted_sum(weights, keep)`: ``sum_h weights[h] g_h``, float32 ``[*shape]``. `keep` (bool ``[k]``) names the
  contributions that are finite; None says that all are. Those that are not add exactly 0 (0 * NaN would be NaN);
- `materialized()`: the gradients themselves, ``[k, *shape]``, for what no cheaper form can do;
- optionally `merge(others)`: the sum with the gradients of other uses of the variable, or None if it knows no cheap way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfdpbc import native

MEMORY_COST = 100.0
"""Cost of writing, squaring and summing one number of a materialised gradient, in floating-point operations of a matrix
product. Only choices between two exact ways depend on it."""


class Term(Protocol):
    """Per-contribution gradients of one variable."""

    form: str
    squares: Any

    def weighted_sum(self, weights: Any, keep: Any = None) -> Any: ...

    def materialized(self) -> Any: ...


def squared_norms(t: Any) -> tf.Tensor:
    """Squared norms of the rows of a float32 tensor ``[k, ...]``."""
    return native.row_squares(t)


CANCELLED = 4e-3
"""A sum of terms below this share of their absolute sum has lost too many digits to bound a norm."""


VANISHING, NEGLIGIBLE = 1.2e-38, 1e-26
"""Products below the first become 0 in float32; squares below the second are far below any clip norm's."""


def trusted(squares: Any, absolute: Any, otherwise: Callable[[], Any], vanished: Any = 0.0) -> tf.Tensor:
    """Squares that were summed from terms of both signs, or `otherwise()` where the terms cancel.

    A norm that cancellation made too small would let its contribution through unclipped. `otherwise` takes the norm of
    the gradient itself, whose rounding is relative to the gradient's own terms and not to their squares. Sums below 0 and
    those whose terms overflowed on the way count as cancelled, and so do those that may miss `vanished`, for what became 0
    on the way. NaN stays NaN, and NaN has no weight.
    """
    cancelled = (squares < CANCELLED * absolute) | (vanished > tf.maximum(CANCELLED * squares, NEGLIGIBLE))
    return tf.cond(tf.reduce_any(cancelled), otherwise, lambda: squares)


def of_grams(a: Any, d: Any, p: int, q: int, otherwise: Callable[[], Any]) -> tf.Tensor:
    """Squared norms of sums of outer products over T positions, from the Gram matrices ``[..., T, T]`` of both factors.

    Each entry of a Gram matrix may miss p or q products that vanished, and the other factor may be large:
    :math:`\\sum_{tt'} |G_{tt'}| \\le T \\operatorname{tr} G` bounds what that comes to.
    """
    product = a * d
    vanished = VANISHING * a.shape[-1] * (p * tf.linalg.trace(d) + q * tf.linalg.trace(a))
    return trusted(tf.reduce_sum(product, [-2, -1]), tf.reduce_sum(tf.abs(product), [-2, -1]), otherwise, vanished)


def rows(t: Any, keep: Any) -> Any:
    """`t` with the rows that `keep` does not name set to 0; `t` itself where keep is None."""
    if keep is None:
        return t
    return tf.where(tf.reshape(keep, [-1] + [1] * (t.shape.rank - 1)), t, tf.zeros_like(t))


def scaled(t: Any, weights: Any, keep: Any) -> Any:
    """``weights[h] * t[h]``."""
    return rows(t, keep) * tf.reshape(weights, [-1] + [1] * (t.shape.rank - 1))


class Materialized:
    """Gradients as they are.

    Args:
      pieces: float tensors ``[k, ...]`` that together hold the gradient of each contribution.
      assemble: makes ``[n, *shape]`` of pieces with n rows (it may reshape, transpose and stack, nothing else).
    """

    form = "gradients"

    def __init__(self, pieces: Sequence[Any], assemble: Callable[[list[Any]], Any]):
        self.pieces = [tf.cast(p, tf.float32) for p in pieces]
        self.assemble = assemble
        self.squares = tf.add_n([squared_norms(p) for p in self.pieces])

    @classmethod
    def of(cls, gradient: Any, shape: Sequence[int]) -> Materialized:
        """A gradient ``[k, ...]`` in one piece, for a variable of `shape`."""
        return cls([gradient], lambda pieces: tf.reshape(pieces[0], [-1, *shape]))

    def weighted_sum(self, weights: Any, keep: Any = None) -> Any:
        summed = []
        for piece in self.pieces:
            flat = tf.reshape(rows(piece, keep), [piece.shape[0], -1])
            summed.append(tf.reshape(tf.matmul(tf.expand_dims(weights, 0), flat), [1, *piece.shape[1:]]))
        return tf.squeeze(self.assemble(summed), [0])

    def materialized(self) -> Any:
        return self.assemble(self.pieces)


class Outer:
    r"""Gradients that are sums of outer products over positions: :math:`g_h = \sum_t a_{h,t} \otimes d_{h,t}`.

    All that multiplies its weight with its input has this form (dense, einsum and convolution kernels; t runs over the
    examples of the contribution and over sequence or image positions). With one position the squared norm is
    :math:`\|a\|^2 \|d\|^2` (Goodfellow, "Efficient per-example gradient computations", 2015); with more it comes from the
    two Gram matrices (Li et al., "Large language models can be strong differentially private learners", ICLR 2022) or
    from the gradient itself, whichever is cheaper; a gradient that was made is also what is summed.

    Args:
      a: ``[k, T, p]`` or ``[k, G, T, p]`` (G independent groups).
      d: ``[k, T, q]`` or ``[k, G, T, q]``.
      assemble: makes ``[n, *shape]`` of ``[n, p, q]`` or ``[n, G, p, q]`` by reshaping and transposing.
    """

    def __init__(self, a: Any, d: Any, assemble: Callable[[Any], Any]):
        self.a, self.d = tf.cast(a, tf.float32), tf.cast(d, tf.float32)
        self.assemble = assemble
        self.gradient = None
        positions, p, q = self.a.shape[-2], self.a.shape[-1], self.d.shape[-1]
        self.form = "factors"
        if positions == 1:
            squares = _product_of_squares(self.a, self.d)
        elif gram_is_cheaper(positions, p, q):
            self.form = "Gram matrices"
            grams = (tf.matmul(t, t, transpose_b=True) for t in (self.a, self.d))
            squares = of_grams(*grams, p, q, lambda: tf.reduce_sum(tf.square(self._product()), [-2, -1]))
        else:
            self.form, self.gradient = "gradients", self._product()
            squares = squared_norms(self.gradient)
        squares = squares if squares.shape.rank == 1 else tf.reduce_sum(squares, 1)
        self.squares = squares

    def _product(self) -> Any:
        return tf.matmul(self.a, self.d, transpose_a=True)

    def weighted_sum(self, weights: Any, keep: Any = None) -> Any:
        if self.gradient is not None:
            flat = tf.reshape(rows(self.gradient, keep), [self.gradient.shape[0], -1])
            total = tf.reshape(tf.matmul(tf.expand_dims(weights, 0), flat), [1, *self.gradient.shape[1:]])
            return tf.squeeze(self.assemble(total), [0])
        a, d = rows(self.a, keep), scaled(self.d, weights, keep)
        if a.shape.rank == 3:
            a, d = (tf.reshape(t, [-1, t.shape[-1]]) for t in (a, d))
        else:
            a, d = (tf.reshape(tf.transpose(t, [1, 0, 2, 3]), [t.shape[1], -1, t.shape[3]]) for t in (a, d))
        return tf.squeeze(self.assemble(tf.expand_dims(tf.matmul(a, d, transpose_a=True), 0)), [0])

    def materialized(self) -> Any:
        return self.assemble(self._product() if self.gradient is None else self.gradient)

    def merge(self, others: Sequence[Term]) -> Term | None:
        """More uses are more positions: nothing is materialised that one use would not."""
        terms = [self, *others]
        outlines = {(_outline(t.a), _outline(t.d)) if isinstance(t, Outer) else None for t in terms}
        if len(outlines) > 1 or None in outlines:
            return None
        return Outer(tf.concat([t.a for t in terms], -2), tf.concat([t.d for t in terms], -2), self.assemble)


LARGEST_SQUARE, SMALLEST_SQUARE = 1e8, 1e-25
"""Sums of squares below the first are multiplied as they are; below the second, squares that vanished may be missing."""


def _product_of_squares(a: Any, d: Any) -> tf.Tensor:
    """``|a|^2 |d|^2``, norms over the last two axes; never too small, of tiny and huge numbers either."""
    outer, flat = a.shape[:-2], [tf.reshape(t, [-1, *t.shape[-2:]]) for t in (a, d)]
    built = native.operations()
    if built is not None:  # in double precision
        return tf.reshape(built.tfdpbc_row_squares(flat), outer)
    squares = [tf.reshape(squared_norms(t), outer) for t in flat]
    # What may be missing is made up for, and a sum that vanished altogether misses less than any clip norm: it stays 0.
    plain = [tf.where(s > 0, tf.maximum(s, SMALLEST_SQUARE), s) for s in squares]
    ordinary = tf.reduce_all([tf.reduce_max(s) <= LARGEST_SQUARE for s in squares])  # NaN is not
    return tf.cond(ordinary, lambda: plain[0] * plain[1], lambda: tf.square(_scaled_norm(a) * _scaled_norm(d)))


def _scaled_norm(t: Any) -> tf.Tensor:
    """Norms over the last two axes without overflow: one factor may undo the other."""
    largest = tf.reduce_max(tf.abs(t), axis=[-2, -1], keepdims=True)
    shares = tf.math.divide_no_nan(t, largest)
    return tf.sqrt(tf.reduce_sum(tf.square(shares), axis=[-2, -1])) * largest[..., 0, 0]


def gram_is_cheaper(positions: int, p: int, q: int) -> bool:
    """Whether two Gram matrices over `positions` cost less than a gradient of p x q numbers."""
    gram = 2.0 * positions**2 * (p + q) + MEMORY_COST * positions**2 + 2.0 * positions * p * q
    return gram < 2.0 * positions * p * q + MEMORY_COST * p * q


def merged(terms: Sequence[Term], shape: Sequence[int]) -> Term:
    """The gradients of a variable that is used more than once: the sum over its uses, cross terms included."""
    first, *others = terms
    if not others:
        return first
    merge = getattr(first, "merge", None)
    together = merge(others) if merge is not None else None
    if together is not None:
        return together
    return Materialized.of(tf.add_n([tf.cast(t.materialized(), tf.float32) for t in terms]), shape)


def _outline(t: Any) -> tuple[int, ...]:
    """The shape without the number of positions."""
    return (*t.shape[:-2], t.shape[-1])


def total(d: Any, shape: Sequence[int]) -> Materialized:
    """Gradients of a variable that is added to the output: `d` summed over everything that the variable broadcasts over.

    Args:
      d: gradient of the output, ``[k, s, ...]``.
      shape: of the variable, aligned with the last axes of `d` (as broadcasting aligns them).
    """
    return Materialized.of(summed_to(d, shape), shape)


def summed_to(d: Any, shape: Sequence[int]) -> Any:
    """``[k, s, ...]`` summed to ``[k, *shape]``, the reverse of broadcasting; in float32."""
    d = tf.cast(d, tf.float32)
    full = [1] * (d.shape.rank - 2 - len(shape)) + list(shape)
    axes = [1] + [2 + i for i, n in enumerate(full) if n == 1 and d.shape[2 + i] != 1]
    return tf.reshape(tf.reduce_sum(d, axes), [d.shape[0], *shape])


def size(shape: Sequence[int]) -> int:
    """How many numbers a tensor of `shape` holds."""
    return math.prod(shape)
