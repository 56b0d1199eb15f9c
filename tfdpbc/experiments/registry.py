"""Experiments by name. Loads nothing heavy."""

from __future__ import annotations

from tfdpbc import _validate
from tfdpbc.experiments import many, paper_a, paper_b, paper_c
from tfdpbc.experiments.setting import Experiment, Setting

_EXPERIMENTS = {
    one.name: one
    for part in (paper_a.EXPERIMENTS, (many.EXPERIMENT,), paper_b.EXPERIMENTS, paper_c.EXPERIMENTS)
    for one in part
}


def names() -> list[str]:
    """All names, paper A's first."""
    return list(_EXPERIMENTS)


def get(name: str) -> Experiment:
    """An experiment by its name.

    Raises:
      ValueError: there is none of that name.
    """
    return _EXPERIMENTS[_validate.choice("experiment", name, _EXPERIMENTS)]


def chosen(experiment: Experiment, wanted: list[str] | None) -> tuple[Setting, ...]:
    """The settings of an experiment, or those of the names in `wanted`, in the experiment's order.

    Raises:
      ValueError: a name that is none of its settings'.
    """
    known = [setting.name for setting in experiment.settings]
    for name in wanted or ():
        _validate.choice("settings", name, known)
    return tuple(s for s in experiment.settings if wanted is None or s.name in wanted)
