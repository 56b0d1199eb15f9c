"""What a plan guarantees: trade-off functions, exact sampling-induced mixtures, Poisson subsampling, calibration.

The room knows nothing of models, data or sampling objects: it takes numbers and returns numbers. Names load on first
use.
"""

from __future__ import annotations

import importlib

_HOMES = {
    "tradeoff": ("TradeOff", "Gaussian", "Grouped", "LossTradeOff"),
    "best": ("Best",),
    "mixture": ("GaussianMixture", "f_at_least", "f_at_most"),
    "participation": ("Participation", "shuffling", "subsampling"),
    "subsampled": ("poisson", "fixed_size", "effective_noise", "clt_mu"),
    "calibration": ("smallest_noise", "most_rounds"),
}
_MODULES = ("balls_in_bins", "ptr", "renyi", "shuffled")  # their functions are called by their module's name
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME, *_MODULES])


def __getattr__(name: str):
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
