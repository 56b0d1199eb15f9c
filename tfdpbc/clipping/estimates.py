"""Where e_j, the expected norm of block j's contribution, comes from. Each answer is a privacy decision of its own."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfdpbc import _validate
from tfdpbc.clipping.base import Released
from tfdpbc.clipping.schedule import LARGEST

PRIORS = ("equal", "sqrt-dimension")
_LEAST = 1e-30  # in place of 0 where a logarithm follows


@dataclasses.dataclass(frozen=True)
class Estimates:
    """The start of the estimates, and how long they hold.

    Args:
      prior: e_j before the first refresh: `"equal"` (1 for all), `"sqrt-dimension"` (the root of the number of weights in
        block j, the norm of a gradient whose entries are of size 1), or one positive number per block in the model's order.
      every: a refresh at the end of each `"epoch"`, or every so many rounds.
      smoothing: weight in (0, 1] of the new value: e_j becomes the geometric mean of old and new with this weight.
    """

    prior: str | tuple[float, ...] = "equal"
    every: str | int = "epoch"
    smoothing: float = 1.0

    name: ClassVar[str]
    public_data: ClassVar[bool] = False
    accumulates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.prior, str) or not hasattr(self.prior, "__len__"):
            _validate.choice("prior", self.prior, PRIORS)
        else:
            values = tuple(_validate.number("prior", v, at_least=1e-12, at_most=LARGEST) for v in self.prior)
            object.__setattr__(self, "prior", values)
        if self.every != "epoch":
            if isinstance(self.every, str):
                _validate.fail("every", "'epoch' or a number of rounds", self.every)
            object.__setattr__(self, "every", _validate.integer("every", self.every, at_least=1))
        object.__setattr__(self, "smoothing", _validate.number("smoothing", self.smoothing, above=0.0, at_most=1.0))

    def start(self, dimensions: Any) -> np.ndarray:
        """e_j of the first rounds, float32 ``[L]``."""
        dimensions = np.asarray(dimensions, np.float64)
        if self.prior == "equal":
            return np.ones(len(dimensions), np.float32)
        if self.prior == "sqrt-dimension":
            return np.sqrt(dimensions).astype(np.float32)
        if len(self.prior) != len(dimensions):
            _validate.fail("prior", f"one number for each of the {len(dimensions)} blocks", self.prior)
        return np.asarray(self.prior, np.float32)

    def initial_state(self, dimensions: Any) -> dict[str, Any]:
        state = {"estimates": self.start(dimensions)}
        if self.accumulates:
            state |= {"sum": np.zeros(len(state["estimates"]), np.float32), "count": np.zeros([], np.float32)}
        return state

    def due(self, round_index: Any, rounds_per_epoch: int) -> Any:
        """Whether the estimates are renewed after the round `round_index`."""
        every = rounds_per_epoch if self.every == "epoch" else self.every
        return tf.equal((round_index + 1) % every, 0)

    def update(self, state: dict[str, Any], released: Released, ceiling: Any) -> dict[str, Any]:
        """The state after a round.

        Args:
          ceiling: float32 ``[L]``, the norm in the unit of the estimates that each bound stands for.
        """
        if not self.accumulates:
            return state
        total, count = state["sum"] + self._sample(released), state["count"] + 1
        due = self.due(released.round_index, released.rounds_per_epoch)
        old = state["estimates"]
        with_news = self.blended(old, self._refreshed(old, total / count, count, released, ceiling))
        return {
            **state,
            "estimates": tf.where(due, with_news, old),
            "sum": tf.where(due, tf.zeros_like(total), total),
            "count": tf.where(due, 0.0, count),
        }

    def blended(self, old: Any, new: Any) -> Any:
        """The geometric mean of old and new estimates with the weight `smoothing` on the new ones."""
        logs = (1 - self.smoothing) * _log(old) + self.smoothing * _log(new)
        return tf.clip_by_value(tf.exp(logs), _LEAST, LARGEST)

    def _sample(self, released: Released) -> Any:
        raise NotImplementedError

    def _refreshed(self, old: Any, mean: Any, count: Any, released: Released, ceiling: Any) -> Any:
        raise NotImplementedError

    def caveats(self) -> list[str]:
        return []

    def to_config(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self)
        return {"name": self.name, **{k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}}


@dataclasses.dataclass(frozen=True)
class FixedNorms(Estimates):
    """e_j is the prior, always. Costs nothing and sees no data."""

    name: ClassVar[str] = "fixed"


@dataclasses.dataclass(frozen=True)
class PublicNorms(Estimates):
    """e_j is measured at the start of each epoch on public data, given as ``fit(..., public_data=(x, y))`` (paper B).

    The mean over `contributions` contributions, drawn at random from the public data, of the norm of block j. It costs the
    private data nothing. The public data is not protected at all.

    Args:
      contributions: how many are measured; paper B takes about 20 batches.
    """

    contributions: int = 20

    name: ClassVar[str] = "public"
    public_data: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every != "epoch":
            _validate.fail("every", "'epoch' for public estimates", self.every)
        most = _validate.integer("contributions", self.contributions, at_least=1)
        object.__setattr__(self, "contributions", most)

    def caveats(self) -> list[str]:
        return ["The data given as public_data set the clip norms; they are not protected."]


@dataclasses.dataclass(frozen=True)
class ReleasedNorms(Estimates):
    r"""e_j is estimated from the noisy updates that were released anyway. Post-processing: it costs nothing.

    With the noisy sum's block :math:`\bar U_j`, its noise std s_j and its dimension d_j,
    :math:`\|\bar U_j\|^2 - d_j s_j^2` is unbiased for the square of the clipped sum's norm. It is averaged over the rounds
    since the last refresh (in units of (m b_j)², b_j the clip norm). A block whose mean lies within two standard errors of
    zero drowns in its noise; it keeps its share of the blocks that do not.

    What it sees is the *clipped* sum. So with m contributions it is the norm of their mean, not the mean of their norms;
    and blocks that are all clipped in every contribution keep the shares they have (the master norm is then below the
    norms of all of them). Under `ScaledClipping` all blocks shrink by the same factor, so the shares seen are the true ones.
    """

    smoothing: float = 0.5

    name: ClassVar[str] = "released"
    accumulates: ClassVar[bool] = True

    def _sample(self, released: Released) -> Any:
        unit = tf.square(released.bounds * float(released.divisor))
        return unbiased_square(released.squares, released.stds, released.dimensions) / unit

    def _refreshed(self, old: Any, mean: Any, count: Any, released: Released, ceiling: Any) -> Any:
        noise = tf.square(released.stds / (released.bounds * float(released.divisor)))  # the same in every round
        signal = tf.maximum(mean, 0.0)
        error = tf.sqrt((2 * released.dimensions * tf.square(noise) + 4 * signal * noise) / count)
        seen = (mean > 2 * error) & tf.math.is_finite(mean)
        found = tf.sqrt(tf.clip_by_value(mean, 0.0, 1.0)) * ceiling
        shares = tf.where(seen, _log(found) - _log(old), 0.0)
        common = tf.reduce_sum(shares) / tf.maximum(tf.reduce_sum(tf.cast(seen, tf.float32)), 1.0)
        new = tf.where(seen, found, old * tf.exp(common))
        return new / tf.reduce_max(new)  # only shares are known of what is clipped


@dataclasses.dataclass(frozen=True)
class PrivateNorms(Estimates):
    r"""e_j is the noisy mean of the contributions' block norms, released in every round and charged.

    Each contribution gives :math:`v_j = \min(1, \|a[j]\| / (κ e_j))`, a point of the unit cube; the sums of
    :math:`v_j - 1/2` are released with noise of standard deviation `noise_multiplier` times their sensitivity (√L/2 where
    a contribution may come or go, √L where it can be replaced). Their mean since the last refresh gives the new e_j, which can
    grow by κ and shrink by κ² at once.

    The plan's noise multiplier stays that of the whole round: the update's noise rises accordingly
    (`PrivacyPlan.update_noise_multiplier`).

    Args:
      noise_multiplier: z > 0, noise std / sensitivity of a round's measurement; it must exceed σ/√L (for grouped clipping
        σ/√groups, for scaled σ), or nothing would be left for the update.
      ceiling: κ > 1.
    """

    noise_multiplier: float = dataclasses.field(default=math.nan)
    ceiling: float = 4.0
    smoothing: float = 0.5

    name: ClassVar[str] = "private"
    accumulates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        noise = _validate.number("noise_multiplier", self.noise_multiplier, at_least=1e-6, at_most=1e12)
        object.__setattr__(self, "noise_multiplier", noise)
        object.__setattr__(self, "ceiling", _validate.number("ceiling", self.ceiling, at_least=1.1, at_most=1e6))

    def measure(self, norms: Any, estimates: Any) -> Any:
        """v, ``[m, L]`` in [0, 1]; 0 where a norm is NaN."""
        v = norms / (self.ceiling * estimates)
        return tf.where(v >= 0, tf.minimum(v, 1.0), 0.0)

    def _sample(self, released: Released) -> Any:
        return released.measured

    def _refreshed(self, old: Any, mean: Any, count: Any, released: Released, ceiling: Any) -> Any:
        error = released.measured_std / tf.sqrt(count)
        found = self.ceiling * old * tf.clip_by_value(mean, self.ceiling**-3, 1.0)
        return tf.where(mean > 2 * error, found, old)


def unbiased_square(squares: Any, stds: Any, dimensions: Any) -> Any:
    """``‖Ū_j‖² − d_j s_j²``: unbiased for ``‖U_j‖²`` where Ū_j = U_j + N(0, s_j² I) has d_j numbers."""
    return squares - dimensions * tf.square(stds)


def _log(values: Any) -> Any:
    return tf.math.log(tf.maximum(values, _LEAST))


by_name = {kind.name: kind for kind in (FixedNorms, PublicNorms, ReleasedNorms, PrivateNorms)}


def as_estimates(value: Any) -> Estimates:
    """Estimates from themselves, their name, or their `to_config`."""
    if isinstance(value, Estimates):
        return value
    fields = {"name": value} if isinstance(value, str) else value
    _validate.instance("estimates", fields, dict, "FixedNorms(), PublicNorms(), ReleasedNorms() or PrivateNorms(...)")
    fields = dict(fields)
    kind = by_name[_validate.choice("estimates", fields.pop("name", None), by_name)]
    return kind(**fields)
