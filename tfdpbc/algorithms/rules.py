"""The rules by which a `LocalOptimizer` steps: pure functions, each equal to the Keras optimizer of its name.

Keras' own `stateless_apply` raises inside `tf.vectorized_map` on the TensorFlow backend, where contributions are computed.
All rules are linear in the learning rate: a rule gives a direction, and the step is ``w <- w - learning_rate * direction``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import keras
import tensorflow as tf

from tfdpbc import _validate


@runtime_checkable
class Rule(Protocol):
    """A rule, pure: TensorFlow operations on its arguments, no variables, no Python state.

    A user's rule is any object with these two methods.
    """

    def init(self, weights: list[Any]) -> Any:
        """The state before the first step: a nest of tensors (of any structure, `()` for none).

        Args:
          weights: where the contribution starts, a list of float tensors.
        """

    def update(self, state: Any, gradient: list[Any], step: Any) -> tuple[Any, list[Any]]:
        """One step: the new state (structure, shapes and dtypes of the old one) and the direction.

        Args:
          state: what `init` or the last `update` returned.
          gradient: of the minibatch, shaped like the weights.
          step: scalar int32 tensor, the steps that this contribution made before.
        """


@dataclasses.dataclass(frozen=True)
class SGD:
    """The gradient itself: with minibatches of 1, paper A's SGD recursion (eq. 2)."""

    name: ClassVar[str] = "sgd"

    def init(self, weights: list[Any]) -> Any:
        return ()

    def update(self, state: Any, gradient: list[Any], step: Any) -> tuple[Any, list[Any]]:
        return (), gradient


@dataclasses.dataclass(frozen=True)
class Momentum:
    """SGD with momentum (`keras.optimizers.SGD(momentum=...)`): u <- momentum u + g; the direction is u."""

    momentum: float = 0.9
    name: ClassVar[str] = "momentum"

    def __post_init__(self) -> None:
        _set(self, "momentum", at_least=0.0, at_most=1.0)

    def init(self, weights: list[Any]) -> Any:
        return _zeros(weights)

    def update(self, state: Any, gradient: list[Any], step: Any) -> tuple[Any, list[Any]]:
        state = [self.momentum * u + g for u, g in zip(state, gradient, strict=True)]
        return state, state


@dataclasses.dataclass(frozen=True)
class Nesterov(Momentum):
    """As `Momentum` with a look ahead (`nesterov=True`): the direction is momentum u + g."""

    name: ClassVar[str] = "nesterov"

    def update(self, state: Any, gradient: list[Any], step: Any) -> tuple[Any, list[Any]]:
        state, _ = super().update(state, gradient, step)
        return state, [self.momentum * u + g for u, g in zip(state, gradient, strict=True)]


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015) with the arguments and defaults of `keras.optimizers.Adam`."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False
    name: ClassVar[str] = "adam"

    def __post_init__(self) -> None:
        _set(self, "beta_1", at_least=0.0, below=1.0)
        _set(self, "beta_2", at_least=0.0, below=1.0)
        _set(self, "epsilon", above=0.0)
        _validate.instance("amsgrad", self.amsgrad, bool, "True or False")

    def init(self, weights: list[Any]) -> Any:
        names = ("m", "v", "largest") if self.amsgrad else ("m", "v")
        return {name: _zeros(weights) for name in names}

    def update(self, state: Any, gradient: list[Any], step: Any) -> tuple[Any, list[Any]]:
        new: dict[str, list[Any]] = {name: [] for name in state}
        direction = []
        for i, g in enumerate(gradient):
            count = tf.cast(step + 1, g.dtype)
            power_1, power_2 = (tf.pow(tf.cast(beta, g.dtype), count) for beta in (self.beta_1, self.beta_2))
            m = state["m"][i] + (g - state["m"][i]) * (1 - self.beta_1)
            v = state["v"][i] + (tf.square(g) - state["v"][i]) * (1 - self.beta_2)
            new["m"].append(m)
            new["v"].append(v)
            if self.amsgrad:
                v = tf.maximum(state["largest"][i], v)
                new["largest"].append(v)
            direction.append(m * (tf.sqrt(1 - power_2) / (1 - power_1)) / (tf.sqrt(v) + self.epsilon))
        return new, direction


@dataclasses.dataclass(frozen=True)
class AdaGrad:
    """AdaGrad (Duchi et al., 2011) with the arguments and defaults of `keras.optimizers.Adagrad`."""

    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7
    name: ClassVar[str] = "adagrad"

    def __post_init__(self) -> None:
        _set(self, "initial_accumulator_value", at_least=0.0)
        _set(self, "epsilon", above=0.0)

    def init(self, weights: list[Any]) -> Any:
        return [tf.fill(w.shape, tf.cast(self.initial_accumulator_value, w.dtype)) for w in weights]

    def update(self, state: Any, gradient: list[Any], step: Any) -> tuple[Any, list[Any]]:
        state = [total + tf.square(g) for total, g in zip(state, gradient, strict=True)]
        return state, [g / tf.sqrt(total + self.epsilon) for total, g in zip(state, gradient, strict=True)]


@dataclasses.dataclass(frozen=True)
class RMSprop:
    """RMSprop (Hinton, 2012) with the arguments and defaults of `keras.optimizers.RMSprop`."""

    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False
    name: ClassVar[str] = "rmsprop"

    def __post_init__(self) -> None:
        _set(self, "rho", at_least=0.0, below=1.0)
        _set(self, "momentum", at_least=0.0, at_most=1.0)
        _set(self, "epsilon", above=0.0)
        _validate.instance("centered", self.centered, bool, "True or False")

    def init(self, weights: list[Any]) -> Any:
        names = ["square"] + ["mean"] * self.centered + ["momentum"] * (self.momentum > 0)
        return {name: _zeros(weights) for name in names}

    def update(self, state: Any, gradient: list[Any], step: Any) -> tuple[Any, list[Any]]:
        new: dict[str, list[Any]] = {name: [] for name in state}
        direction = []
        for i, g in enumerate(gradient):
            square = self.rho * state["square"][i] + (1 - self.rho) * tf.square(g)
            new["square"].append(square)
            variance = square
            if self.centered:
                mean = self.rho * state["mean"][i] + (1 - self.rho) * g
                new["mean"].append(mean)
                variance = square - tf.square(mean)
            move = g / tf.sqrt(variance + self.epsilon)
            if self.momentum > 0:
                move = self.momentum * state["momentum"][i] + move
                new["momentum"].append(move)
            direction.append(move)
        return new, direction


by_name = {kind.name: kind for kind in (SGD, Momentum, Nesterov, Adam, AdaGrad, RMSprop)}


def get(rule: Any) -> Any:
    """A rule from itself, its name (with Keras' defaults), or its configuration."""
    if isinstance(rule, str):
        return by_name[_validate.choice("rule", rule, by_name)]()
    if isinstance(rule, Mapping):
        fields = dict(rule)
        return by_name[_validate.choice("rule", fields.pop("name", None), by_name)](**fields)
    if isinstance(rule, type) or not isinstance(rule, Rule):
        expected = (
            f"a rule such as SGD(), one of the names {', '.join(map(repr, by_name))}, or an object with init and update"
        )
        if isinstance(rule, keras.optimizers.Optimizer):
            expected += " (a Keras optimizer holds variables, which no contribution may write)"
        _validate.fail("rule", expected, rule, TypeError)
    return rule


def to_config(rule: Any) -> dict[str, Any]:
    """JSON-able description of a rule of this module.

    Raises:
      NotImplementedError: a user's rule.
    """
    if type(rule) not in by_name.values():
        raise NotImplementedError(f"only rules of tfdpbc can be serialised; got rule={rule!r}")
    return {"name": rule.name, **dataclasses.asdict(rule)}


def _set(rule: Any, name: str, **ends: float) -> None:
    object.__setattr__(rule, name, _validate.number(name, getattr(rule, name), **ends))


def _zeros(weights: list[Any]) -> list[Any]:
    return [tf.zeros(w.shape, w.dtype) for w in weights]
