"""Attacks on a chosen share of the examples, for experiments: seeded, so that they can be repeated and undone.

Which examples are corrupted is known to the experiment and is no part of a product's guarantee. Labels and features are
changed here; for gradients the chosen examples are only marked, by a sample weight of −1, and
`gradients.corrupted.CorruptedEngine` does the rest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfdpbc import _validate

DATA_ATTACKS = ("label", "label-random", "noise", "trigger")
GRADIENT_ATTACKS = ("gradient-random", "gradient-negated", "gradient-little")
ATTACKS = (*DATA_ATTACKS, *GRADIENT_ATTACKS)


class Attack(NamedTuple):
    """What is done to which share of the examples."""

    kind: str
    share: float

    @classmethod
    def parse(cls, text: str) -> Attack:
        """``KIND:SHARE``, as on the command line.

        Raises:
          ValueError: an unknown kind, or a share outside of [0, 1].
        """
        kind, _, share = str(text).partition(":")
        _validate.choice("attack", kind, ATTACKS)
        try:
            return cls(kind, _validate.probability("attack", float(share), zero=True, one=True))
        except ValueError:
            _validate.fail("attack", "KIND:SHARE with a share in [0, 1]", text)


class Corrupted(NamedTuple):
    """Copies of the data after an attack.

    Attributes:
      x, y: as given but for the corrupted examples.
      chosen: bool ``[N]``, which these are.
      sample_weight: float32 ``[N]``, −1 marks an example whose gradient is to be corrupted; None for other attacks.
    """

    x: np.ndarray
    y: np.ndarray
    chosen: np.ndarray
    sample_weight: np.ndarray | None = None


def choose(num_examples: int, share: float, seed: int) -> np.ndarray:
    """A uniformly random subset of round(share N) examples, bool ``[N]``; a larger share holds a smaller one."""
    share = _validate.probability("share", share, zero=True, one=True)
    order = np.random.default_rng(_validate.integer("seed", seed, at_least=0)).permutation(num_examples)
    chosen = np.zeros(num_examples, bool)
    chosen[order[: round(share * num_examples)]] = True
    return chosen


def flip_labels(y: np.ndarray, chosen: np.ndarray, num_classes: int, seed: int | None = None) -> np.ndarray:
    """Wrong labels: the next class (mod `num_classes`), or with a `seed` a random other one."""
    y, chosen = np.array(y), np.asarray(chosen, bool)
    classes = _validate.integer("num_classes", num_classes, at_least=2)
    count = int(chosen.sum())
    step = 1 if seed is None else np.random.default_rng(seed).integers(1, classes, (count, *y.shape[1:]))
    y[chosen] = (y[chosen] + step) % classes
    return y


def add_noise(x: np.ndarray, chosen: np.ndarray, std: float, seed: int) -> np.ndarray:
    """Gaussian noise of standard deviation `std`, in units of x, on the chosen examples; float32."""
    x = np.array(x, np.float32)
    std = _validate.number("std", std, at_least=0)
    x[chosen] += std * np.random.default_rng(seed).normal(size=x[chosen].shape).astype(np.float32)
    return x


def add_trigger(x: np.ndarray, chosen: np.ndarray, value: float = 1.0, size: int = 3) -> np.ndarray:
    """A constant pattern: the last `size` positions of each axis of an image (of features: the last `size`) become `value`."""
    x = np.array(x, np.float32)
    size = _validate.integer("size", size, at_least=1)
    axes = max(1, x.ndim - 2)  # channels stay whole
    window = (np.asarray(chosen, bool).nonzero()[0], *[slice(-size, None)] * axes)
    x[window] = value
    return x


def attacked(
    x: np.ndarray, y: np.ndarray, attack: Attack, num_classes: int, seed: int = 0, std: float = 10.0
) -> Corrupted:
    """The training data under an attack: wrong labels with "trigger" too (a back door into the next class).

    Args:
      x: inputs, scaled as the model takes them.
      std: of "noise".
    """
    chosen = choose(len(y), attack.share, seed)
    if attack.kind in GRADIENT_ATTACKS:
        return Corrupted(x, y, chosen, np.where(chosen, -1.0, 1.0).astype(np.float32))
    if attack.kind == "noise":
        return Corrupted(add_noise(x, chosen, std, seed + 1), y, chosen)
    flipped = flip_labels(y, chosen, num_classes, seed + 1 if attack.kind == "label-random" else None)
    return Corrupted(add_trigger(x, chosen) if attack.kind == "trigger" else x, flipped, chosen)
