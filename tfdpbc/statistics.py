"""Batch normalisation's moving statistics as one more block of each contribution: clipped, noised and charged."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdpbc import _validate


@dataclasses.dataclass(frozen=True)
class PrivateStatistics:
    r"""How a plan releases the moving statistics of batch normalisation (algorithm.md, "Batch normalisation").

    Contribution h carries, beside its gradient, the vector b_h of all differences (batch mean − moving mean, batch variance
    − moving variance) of its examples. It is clipped on its own to norm C_s, the clipped vectors are added up, noise of
    standard deviation σ_s times the sensitivity (2 C_s for batches) is added to the sum, and the layers' own momentum moves
    the statistics by the noisy average:

    .. math:: v \leftarrow v + (1 - \text{momentum}) \, \frac1m \Big( \sum_h [b_h]_{C_s} + N(0, (2 C_s \sigma_s)^2 I) \Big)

    Args:
      norm: C_s > 0, in units of the statistics. Of the right size if it lets the differences of a trained model pass.
      noise_ratio: σ_s/σ, the noise of this block relative to the plan's `noise_multiplier`. More of it costs less privacy
        and gives worse statistics.
      variance_floor: public lower bound > 0 on moving variances, which noise could make negative.

    Formal guarantee: a round that one differing contribution hits k times releases one more Gaussian mechanism G_{k/σ_s}
    beside the L of the clipping, so the plan's guarantee is that of one block with 1/σ_total² = L/σ² + 1/σ_s².
    """

    norm: float = 1.0
    noise_ratio: float = 1.0
    variance_floor: float = 1e-3

    def __post_init__(self) -> None:
        for name, least, most in (("norm", 1e-12, 1e15), ("noise_ratio", 1e-3, 1e3), ("variance_floor", 1e-6, 1e6)):
            value = _validate.number(name, getattr(self, name), at_least=least, at_most=most)
            object.__setattr__(self, name, value)

    @property
    def charge(self) -> float:
        """How many of the clipping's blocks this one weighs: (σ/σ_s)²."""
        return self.noise_ratio**-2

    def to_config(self) -> dict[str, float]:
        """JSON-able; `from_config` is its inverse."""
        return dataclasses.asdict(self)


def from_config(config: dict[str, float] | None) -> PrivateStatistics | None:
    """The statistics of a plan from their configuration.

    Raises:
      ValueError, TypeError: a field is missing, unknown or out of range.
    """
    if config is None:
        return None
    _validate.instance("statistics", config, dict, "a configuration of PrivateStatistics (a dict) or None")
    fields = {field.name for field in dataclasses.fields(PrivateStatistics)}
    if set(config) != fields:
        _validate.fail("statistics", f"a dict with the keys {sorted(fields)}", sorted(config))
    return PrivateStatistics(**config)


def moving_statistics(layers: Sequence[Any]) -> list[Any]:
    """The moving mean and variance of each layer that moves them: with momentum 1 they stay what they are."""
    return [v for layer in layers if layer.momentum < 1 for v in (layer.moving_mean, layer.moving_variance)]


class StatisticsBlock:
    """The block of one model: vectors of contributions in, noisy moving statistics out.

    Args:
      layers: the BatchNormalization layers that use batch statistics in training, of momentum in [0, 1].
      settings: the plan's.
    """

    def __init__(self, layers: Sequence[Any], settings: PrivateStatistics):
        self.settings = settings
        self.variables = moving_statistics(layers)
        self._momenta = [layer.momentum for layer in layers if layer.momentum < 1 for _ in range(2)]
        self._sizes = [math.prod(v.shape) for v in self.variables]

    def vectors(self, state: list[Any]) -> tf.Tensor:
        """b_1..b_k, float32 ``[k, d]``.

        Args:
          state: for each of `variables` what each contribution would make of it, ``[k, *shape]``.
        """
        parts = []
        for new, variable, momentum in zip(state, self.variables, self._momenta, strict=True):
            # new = momentum * old + (1 - momentum) * batch, so this is batch - old.
            difference = tf.cast(new - tf.convert_to_tensor(variable.value)[None], tf.float32) / (1.0 - momentum)
            parts.append(tf.reshape(difference, [difference.shape[0], -1]))
        return tf.concat(parts, axis=1)

    def weights(self, clip_weights: Any, norms: Any, vectors: Any) -> tf.Tensor:
        """The clipping's weights ``[k, L]`` with this block's as one more column ``[k, L + 1]``.

        All of a contribution's weights are 0 where a norm of it, this block's or the clipping's (`norms`), is not finite.
        """
        own = tf.norm(vectors, axis=1)[:, None]
        weights = tf.concat([clip_weights, 1.0 / tf.maximum(1.0, own / self.settings.norm)], axis=1)
        finite = tf.reduce_all(tf.math.is_finite(tf.concat([norms, own], axis=1)), axis=1, keepdims=True)
        return tf.where(finite, weights, tf.zeros_like(weights))

    def weighted_sum(self, vectors: Any, weights: Any) -> tf.Tensor:
        """``sum_h weights[h] b_h``, float32 ``[d]``; what has weight 0 adds exactly 0, even NaN."""
        weights = weights[:, None]
        return tf.reduce_sum(weights * tf.where(weights > 0, vectors, tf.zeros_like(vectors)), axis=0)

    def moved(self, average: Any) -> list[tf.Tensor]:
        """The new value of each of `variables` after a round whose noisy average is `average` ``[d]``."""
        values = []
        steps = tf.split(average, self._sizes)
        for i, (variable, step, momentum) in enumerate(zip(self.variables, steps, self._momenta, strict=True)):
            old = tf.cast(tf.convert_to_tensor(variable.value), tf.float32)
            new = old + (1.0 - momentum) * tf.reshape(step, variable.shape)
            values.append(tf.maximum(new, self.settings.variance_floor) if i % 2 else new)
        return values


def block(layers: Sequence[Any], settings: PrivateStatistics | None) -> StatisticsBlock | None:
    """The block of a model with these layers; None without settings, or where no statistics move."""
    return StatisticsBlock(layers, settings) if settings is not None and moving_statistics(layers) else None
