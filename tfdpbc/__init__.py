"""Differentially private training for Keras: generalised DP-SGD (batch clipping, shuffling) and its guarantee.

The names below are loaded when they are first asked for (PEP 562), so that ``import tfdpbc``,
``import tfdpbc.accounting`` and ``tfdpbc --help`` do not wait for TensorFlow.
"""

import importlib

__version__ = "0.1.0"

_HOME = {
    "Shuffling": "sampling",
    "Subsampling": "sampling",
    "Poisson": "sampling",
    "BallsInBins": "sampling",
    "FullGradientClipping": "clipping",
    "LayerwiseClipping": "clipping",
    "GroupedClipping": "clipping",
    "ScaledClipping": "clipping",
    "QuantileClipping": "clipping",
    "AutomaticClipping": "clipping",
    "FixedNorms": "clipping",
    "PublicNorms": "clipping",
    "ReleasedNorms": "clipping",
    "PrivateNorms": "clipping",
    "Sum": "aggregation",
    "TrimmedSum": "aggregation",
    "GlobalTrimmedSum": "aggregation",
    "CoordinateMedian": "aggregation",
    "GeometricMedian": "aggregation",
    "AlgorithmSequence": "algorithms",
    "BatchGradient": "algorithms",
    "LocalOptimizer": "algorithms",
    "PostProcessed": "algorithms",
    "PrivacyPlan": "plan",
    "PrivateStatistics": "statistics",
    "PrivateModel": "keras_model",
    "TradeOff": "accounting",
    "Gaussian": "accounting",
    "GaussianMixture": "accounting",
    "TfdpbcError": "errors",
    "BudgetExhausted": "errors",
    "DataError": "errors",
    "IncompatibleModel": "errors",
    "RunFolderError": "errors",
    "UnreachableTarget": "errors",
}
_MODULES = ("accounting", "algorithms", "callbacks", "data", "errors", "models")

__all__ = ["__version__", *_HOME, *_MODULES]


def __getattr__(name: str):
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
