"""What an experiment of the papers is: settings that are trained, and what the paper claims for each."""

from __future__ import annotations

import dataclasses
from typing import Any

SIZES = {"mnist": 60_000, "cifar10": 50_000}
"""Training examples of the data sets of the papers, for guarantees that are stated without loading them."""
_WORDS = ("name", "claimed", "approximate", "claimed_mu", "note")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Robust:
    """What a training of paper C has besides: an attack, and an aggregation that may withstand it.

    Args:
      aggregation: "sum", "global-trimmed" (F left out, noise of the global sensitivity) or "trimmed" (Propose-Test-Release).
      epsilon, delta: the promise that σ is calibrated to, at the scale that is run; epsilon None: no noise.
      assumed: the share of corrupted examples that F is made for; a public choice, whatever `share` is.
      release_norm: τ of "trimmed".
      attack, share: as `data.corruption.Attack`; attack None: nothing is corrupted.
      strength: of the attack: the norm of a corrupted gradient, the standard deviation of noise on features.
    """

    aggregation: str = "sum"
    epsilon: float | None = None
    delta: float = 1e-5
    assumed: float = 0.0
    release_norm: float | None = None
    attack: str | None = None
    share: float = 0.0
    strength: float = 1e3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One training, but for its scale (epochs, examples, seed).

    Args:
      name: within the experiment; what `--settings` takes.
      dataset: name for `data.load`.
      model: name for `models.build`.
      normalization: of the model: "batch", "group" or "none"; None for a model that has no choice.
      activation: of the model; None for its own.
      clip: what a contribution is: "batch" (m = 1), "individual" (s = 1), or None for SGD without privacy.
      clipping: "full", "layerwise", "grouped" or "scaled". All but the first measure the layers' norms on public data.
      num_groups: of grouped clipping.
      sampling: "shuffling", "subsampling" or "poisson" (individual clipping).
      batch_size: examples a round, m s.
      noise_multiplier: σ as the paper counts it: noise of standard deviation 2Cσ on the clipped sum.
      noise_divided: the noise is divided by the batch size (as if the paper's σ were that of a sum of batch_size
        gradients), and so is the noise multiplier that the guarantee is stated for.
      norm, norm_decay: C and its factor after each epoch.
      learning_rate, learning_rate_decay, momentum: of SGD; the decay is a factor after each epoch.
      augment: random shifts and flips (paper B).
      pad: the largest shift in pixels. Paper B pads 4: 4 where the crop has the image's size, 2 where it takes 32 x 32 of a
        28 x 28 image (MNIST).
      public_share: the part of the training set that is held out as public.
      robust: of paper C; σ then follows from its `epsilon`.
      epochs: of the paper.
      claimed: the test accuracy in percent that the paper claims: none, one number, or the ends of a range.
      approximate: whether the paper says "about".
      claimed_mu: μ of the G_μ that the paper claims by its central limit formula.
      note: what a reader of the table must know.
    """

    name: str
    dataset: str
    model: str
    normalization: str | None = "batch"
    activation: str | None = None
    clip: str | None = "batch"
    clipping: str = "layerwise"
    num_groups: int | None = None
    sampling: str = "subsampling"
    batch_size: int = 64
    noise_multiplier: float = 0.0
    noise_divided: bool = False
    norm: float = 1.0
    norm_decay: float = 1.0
    learning_rate: float = 0.025
    learning_rate_decay: float = 0.9
    momentum: float = 0.0
    augment: bool = True
    pad: int = 4
    public_share: float = 0.1
    robust: Robust | None = None
    epochs: int = 50
    claimed: tuple[float, ...] = ()
    approximate: bool = False
    claimed_mu: float | None = None
    note: str = ""

    @property
    def private(self) -> bool:
        """Whether it is trained under a plan."""
        return self.clip is not None

    @property
    def planned_noise(self) -> float:
        """The noise multiplier of the plan: noise std / sensitivity of what is really added."""
        return self.noise_multiplier / (self.batch_size if self.noise_divided else 1)

    @property
    def claim(self) -> str:
        """The claimed accuracy in words; "–" where nothing is claimed."""
        if not self.claimed:
            return "–"
        return ("≈ " if self.approximate else "") + "–".join(f"{value:g}" for value in self.claimed) + " %"

    def num_private(self, examples: int) -> int:
        """How many of so many training examples are private."""
        return examples - round(self.public_share * examples)

    def config(self) -> dict[str, Any]:
        """What the training depends on, JSON-able. Settings of different experiments that agree in it are one training."""
        fields = dataclasses.asdict(self)
        # Results of papers A and B, which have no such part, are found by what they were without it.
        left_out = (*_WORDS, "epochs", *(("robust",) if self.robust is None else ()))
        return {name: value for name, value in fields.items() if name not in left_out}


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Settings that differ in one field: a plot of accuracy against it.

    Args:
      field: of `Setting`.
      label: of the axis.
      settings: their names.
    """

    field: str
    label: str
    settings: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A row of experiments.md.

    Args:
      name: what `tfdpbc reproduce` takes.
      paper: "A", "B" or "C".
      title: in one line.
      where: in the paper.
      claim: in words.
      settings: what is trained; none for an experiment of accounting alone.
      sweeps: what is plotted besides the accuracy by epoch.
      notes: what a reader of the results must know.
    """

    name: str
    paper: str
    title: str
    where: str
    claim: str
    settings: tuple[Setting, ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [setting.name for setting in self.settings]
        known = {name for sweep in self.sweeps for name in sweep.settings}
        if len(set(names)) < len(names) or not known <= set(names) or any("," in name for name in names):
            raise ValueError(f"settings of {self.name} must have names of their own that the sweeps name; got {names}")


def swept(base: Setting, field: str, label: str, values: tuple[Any, ...], **claims: Any) -> tuple[Setting, ...]:
    """`base` once for each value of a field, named "label=value".

    Args:
      claims: name of a field of claims → {value → what it is there}.
    """
    made = []
    for value in values:
        words = {name: of_value[value] for name, of_value in claims.items() if value in of_value}
        made.append(dataclasses.replace(base, name=f"{label}={value:g}", **{field: value}, **words))
    return tuple(made)


def names(settings: tuple[Setting, ...]) -> tuple[str, ...]:
    return tuple(setting.name for setting in settings)
