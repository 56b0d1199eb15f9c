"""What every clipping is: a function from the contributions' block norms to weights."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdpbc import _validate
from tfdpbc.clipping.schedule import NormSchedule


class Released(NamedTuple):
    """What a clipping may learn of a round that was just released: public, for all of it is noisy.

    Attributes:
      round_index: scalar integer tensor.
      rounds_per_epoch: B.
      bounds: float32 ``[L]``, the round's clip norms.
      squares: float32 ``[L]``, squared norms of the noisy sum's blocks (before division).
      stds: float32 ``[L]``, the noise's standard deviation in each block.
      dimensions: float32 ``[L]``, how many numbers each block has.
      measured: float32 ``[K]``, noisy mean over the planned contributions of what `Clipping.measure` gave; empty if K = 0.
      measured_std: the standard deviation of each of these means, a float.
      divisor: the planned number of contributions.
    """

    round_index: Any
    rounds_per_epoch: int
    bounds: Any
    squares: Any
    stds: Any
    dimensions: Any
    measured: Any
    measured_std: float
    divisor: int


class Clipping(keras.layers.Layer):
    """Maps block norms ``[m, L]`` to weights ``[m, L]``; block j of the aggregate is ``sum_h weight[h, j] a_h[j]``.

    A clipping never sees a gradient, so it works with every gradient engine. Subclasses say which variables form a block
    (`assign_blocks`), how large a clipped block may be (`bounds`), and name their public fields in `public`.

    A clipping may adapt itself. What it knows is a `state`, a dict of tensors that starts as `initial_state` says and is
    renewed by `update` after each round, from what was released and from nothing else. It may also ask for one more
    released quantity: `measured` numbers in [0, 1] of each contribution (`measure`), whose noisy sum the plan charges.

    Formal guarantee: for every input and state, finite or not, ``weight[h, j] * norm[h, j] <= bounds[j]`` (up to float32
    rounding), and a contribution with a non-finite norm gets weight 0. So one changed contribution moves the aggregate of
    block j by at most ``f * bounds[j]``, where the factor f belongs to the sampling, and with noise of standard deviation
    ``σ f bounds[j]`` in each block j a hit round is :math:`G_{\\sqrt{composed\\_blocks}/σ}`.
    """

    public: tuple[str, ...] = ()
    """Names of the constructor's arguments; each is kept under the same name with an underscore before it."""

    def __init__(self, **kwargs: Any):
        kwargs.setdefault("dtype", "float32")  # norms stay in float32 whatever precision the model computes in
        super().__init__(trainable=False, **kwargs)
        self.built = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).public:  # a plan is frozen, and its noise is derived from these
            raise AttributeError(f"{name} of a clipping is fixed; make another one")
        super().__setattr__(name, value)

    def fields(self) -> dict[str, Any]:
        """The public fields, JSON-able; two clippings with equal fields are equal."""
        return {name: _plain(getattr(self, f"_{name}")) for name in self.public}

    # The blocks.

    def num_blocks(self) -> int:
        """L, the number of blocks that norms and weights are given for."""
        raise NotImplementedError

    def composed_blocks(self) -> int:
        """How many Gaussian mechanisms of noise multiplier σ a hit round composes: the guarantee is that of σ/√this."""
        return self.num_blocks()

    def assign_blocks(self, variables: list) -> list[int]:
        """The block (0..L-1) of each trainable variable."""
        raise NotImplementedError

    def blocks_of(self, model: Any) -> list[int]:
        """The block of each of the model's trainable variables."""
        return self.assign_blocks(model.trainable_variables)

    def for_model(self, model: Any) -> Clipping:
        """This clipping, tied to the blocks of `model`; itself where it needs none.

        Raises:
          IncompatibleModel: it was made for a model of other blocks.
        """
        return self

    # A round.

    def bounds(self, round_index: Any, rounds_per_epoch: int) -> Any:
        """Clip norms ``[L]`` of the round `round_index` (counted from 0; a Python int or an integer tensor).

        Clippings with a state take it as a third argument.
        """
        raise NotImplementedError

    def smallest_bound(self, rounds: int, rounds_per_epoch: int) -> float:
        """The least clip norm that any of the plan's rounds can have."""
        return min(self.bounds(rounds - 1, rounds_per_epoch))

    def call(self, norms: Any, bounds: Any) -> Any:
        """Weights ``min(1, bounds / norms)``; 0 where the norm of any block of the contribution is not finite.

        Args:
          norms: float32 ``[m, L]``.
          bounds: float32 ``[L]``.
        """
        # max(1, norm / C) rather than C / norm: a zero norm is no special case and C = 1e30 does not overflow.
        return of_finite(norms, 1.0 / tf.maximum(1.0, norms / bounds))

    # What adapts.

    adaptive = False
    """Whether it has a state; `bounds` and `call` are then given it as the keyword `state`."""
    needs_public_data = False
    """Whether the state is renewed from public data (`Estimates.public`)."""

    def initial_state(self, dimensions: Any) -> dict[str, Any]:
        """The state before the first round, as numpy arrays; `dimensions` are the numbers in each block."""
        return {}

    def measured(self) -> int:
        """K, how many numbers of each contribution `measure` gives."""
        return 0

    def measurement_std(self, sensitivity_factor: float) -> float:
        """Standard deviation of the noise on each sum of measured numbers; see `PrivacyPlan.measurement`."""
        return 0.0

    def measure(self, norms: Any, bounds: Any, state: dict[str, Any]) -> Any:
        """Numbers in [0, 1] (never NaN), float32 ``[m, K]``, from the block norms of the same contribution alone."""
        raise NotImplementedError

    def update(self, state: dict[str, Any], released: Released) -> dict[str, Any]:
        """The state after a round, of the same shapes."""
        return state

    def caveats(self) -> list[str]:
        """What a reader of the guarantee must know of this clipping."""
        return []

    # Serialisation.

    def get_config(self) -> dict[str, Any]:
        return {**self.fields(), "name": self.name}

    def to_config(self) -> dict[str, Any]:
        """JSON-able description, without the layer's name."""
        return {"name": self.config_name, **self.fields()}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash((type(self).__name__, json.dumps(self.fields(), sort_keys=True)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.fields().items())})"


class Scheduled(Clipping):
    """A clipping whose norm follows a `NormSchedule`; `norm_name` is what its argument is called."""

    norm_name = "norm"

    def __init__(self, norm: Any, decay: float, decay_every: str, **kwargs: Any):
        super().__init__(**kwargs)
        self._schedule = NormSchedule(self.norm_name, norm, decay, decay_every)
        setattr(self, f"_{self.norm_name}", self._schedule.config)
        self._decay, self._decay_every = self._schedule.decay, self._schedule.every

    norm = property(lambda self: self._schedule.norm, doc="C, the (initial) clip norm or its schedule.")
    decay = property(lambda self: self._decay, doc="Factor per epoch or round.")
    decay_every = property(lambda self: self._decay_every, doc='"epoch" or "round".')

    def smallest_bound(self, rounds: int, rounds_per_epoch: int) -> float:
        # A user's function need not fall: a thousand of its values are looked at. `NormSchedule` keeps all of them allowed.
        span = rounds_per_epoch if self._schedule.every == "epoch" else 1
        stride = max(1, rounds // span // 1000) * span if callable(self._schedule.norm) else rounds
        return min(self._schedule(r, rounds_per_epoch) for r in (*range(0, rounds, stride), rounds - 1))


def of_finite(norms: Any, weights: Any) -> Any:
    """`weights`, but 0 for contributions that have a block of non-finite norm."""
    finite = tf.reduce_all(tf.math.is_finite(norms), axis=-1, keepdims=True)
    return tf.where(finite, weights, tf.zeros_like(weights))


def optional_integer(name: str, value: Any, at_least: int = 1) -> int | None:
    return None if value is None else _validate.integer(name, value, at_least=at_least)


def _plain(value: Any) -> Any:
    if hasattr(value, "to_config"):
        return value.to_config()
    return list(value) if isinstance(value, tuple) else value
