"""What every clipping is: a function from the contributions' block norms to weights."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


class Clipping(keras.layers.Layer):
    """Maps block norms ``[m, L]`` to weights ``[m, L]``; block j of the aggregate is ``sum_h weight[h, j] a_h[j]``.

    A clipping never sees a gradient, so it works with every gradient engine. Subclasses say which variables form a block
    (`assign_blocks`), how large a clipped block may be (`bounds`), and list their public fields in `fields`.

    Formal guarantee: for every input, finite or not, ``weight[h, j] * norm[h, j] <= bounds[j]`` (up to float32 rounding),
    and a contribution with a non-finite norm gets weight 0. So one changed contribution moves the aggregate of block j by
    at most ``sensitivity_factor * bounds[j]``, where the factor belongs to the sampling.
    """

    def __init__(self, **kwargs: Any):
        kwargs.setdefault("dtype", "float32")  # norms stay in float32 whatever precision the model computes in
        super().__init__(trainable=False, **kwargs)
        self.built = True

    def fields(self) -> dict[str, Any]:
        """The public fields, JSON-able; two clippings with equal fields are equal."""
        raise NotImplementedError

    def num_blocks(self) -> int:
        """L, the number of separately clipped blocks."""
        raise NotImplementedError

    def assign_blocks(self, variables: list) -> list[int]:
        """The block (0..L-1) of each trainable variable."""
        raise NotImplementedError

    def bounds(self, round_index: Any, rounds_per_epoch: int) -> Any:
        """Clip norms ``[L]`` of the round `round_index` (counted from 0; a Python int or an integer tensor)."""
        raise NotImplementedError

    def call(self, norms: Any, bounds: Any) -> Any:
        """Weights ``min(1, bounds / norms)``; 0 where the norm of any block of the contribution is not finite.

        Args:
          norms: float32 ``[m, L]``.
          bounds: float32 ``[L]``.
        """
        # max(1, norm / C) rather than C / norm: a zero norm is no special case and C = 1e30 does not overflow.
        weights = 1.0 / tf.maximum(1.0, norms / bounds)
        finite = tf.reduce_all(tf.math.is_finite(norms), axis=-1, keepdims=True)
        return tf.where(finite, weights, tf.zeros_like(weights))

    def get_config(self) -> dict[str, Any]:
        return {**self.fields(), "name": self.name}

    def to_config(self) -> dict[str, Any]:
        """JSON-able description, without the layer's name."""
        return {"name": self.config_name, **self.fields()}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash((type(self).__name__, tuple(sorted(self.fields().items()))))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.fields().items())})"
