"""May this model train under this plan? What would break the guarantee is refused here, before any data is read."""

from __future__ import annotations

import warnings
from typing import Any

import keras

from tfdpbc import _validate
from tfdpbc.errors import IncompatibleModel
from tfdpbc.statistics import moving_statistics

STATISTICS = ("private", "public", "batch", "unprotected")
"""What becomes of batch normalisation's moving statistics (algorithm.md); there is no silent default among them.

- private: each contribution's batch statistics are one more clipped, noised block, which the plan charges.
- public: they keep their values until they are recomputed from public data.
- batch: they keep their values; inference normalises with the batch it is given.
- unprotected: they are written from raw data, and no guarantee is stated for the model.
"""
_CHOICES = (
    "statistics='private' releases them as one more noised block (with PrivacyPlan(..., statistics=PrivateStatistics(norm)), "
    "which charges it), 'public' recomputes them from public data, 'batch' normalises with the batch in inference too, and "
    "'unprotected' keeps them and voids the stated guarantee of the released model"
)


def chosen_statistics(statistics: str | None, plan: Any) -> str | None:
    """What becomes of the moving statistics under `plan`: a plan that charges for them says it already.

    Raises:
      ValueError: an unknown name; or one that does not agree with what the plan charges, so that the guarantee would
        leave a release out or count one that does not happen.
    """
    if statistics is None:
        return None if plan.statistics is None else "private"
    _validate.choice("statistics", statistics, STATISTICS)
    if statistics == "private" and plan.statistics is None:
        _validate.fail(
            "statistics",
            "charged by the plan, which leaves them out of the guarantee now: make it with "
            "PrivacyPlan(..., statistics=PrivateStatistics(norm))",
            statistics,
        )
    if statistics != "private" and plan.statistics is not None:
        _validate.fail("statistics", f"'private' (or not given) under a plan with {plan.statistics!r}", statistics)
    return statistics


def batch_normalizations(model: keras.Model) -> list[Any]:
    """The BatchNormalization layers (subclasses too) that use batch statistics in training; frozen ones do not."""
    layers = model._flatten_layers(include_self=True, recursive=True)
    return [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable]


def check_trainable(model: keras.Model) -> None:
    """Refuses a model that private training could not change."""
    if not model.trainable_variables:
        raise IncompatibleModel(
            f"model must have at least one trainable weight; got model={model.name!r} with {len(model.variables)} "
            "weights, none of them trainable"
        )


def check_batch_normalization(model: keras.Model, sampling: Any, statistics: str | None) -> None:
    """Batch normalisation mixes the rows it is given and stores their statistics; both must fit the plan.

    Raises:
      IncompatibleModel: under individual clipping, where contributions may not see each other; where padding rows would
        enter the statistics; where nothing says what becomes of the moving statistics; and for kinds of layers that the
        choice cannot serve.
    """
    layers = batch_normalizations(model)
    if not layers:
        return
    names = ", ".join(repr(layer.name) for layer in layers)
    if sampling.is_individual:
        raise IncompatibleModel(
            f"layers must not mix examples under individual clipping; got batch normalisation in {names}. Ways out: use "
            "GroupNormalization or LayerNormalization, freeze the layer (trainable=False), or clip batches "
            "(examples_per_contribution > 1)"
        )
    if sampling.masked:
        raise IncompatibleModel(
            f"batch normalisation needs contributions of a fixed size, since padding would enter its statistics; got "
            f"{names} under {sampling.name} sampling. Use Shuffling or Subsampling"
        )
    if statistics is None:
        raise IncompatibleModel(
            f"statistics must be chosen for a model with batch normalisation ({names}): its moving statistics are written "
            f"from raw data and no noise of the gradient covers them. {_CHOICES}; got statistics=None"
        )
    for layer in layers:
        _check_layer(layer, statistics)


def _check_layer(layer: Any, statistics: str) -> None:
    if getattr(layer, "synchronized", False):
        raise IncompatibleModel(
            f"contributions must not see each other's examples, on other devices either; got synchronized=True in "
            f"{layer.name!r}. Make the layer with synchronized=False"
        )
    if statistics == "unprotected":
        return
    if getattr(layer, "renorm", False):
        raise IncompatibleModel(
            f"statistics={statistics!r} does not go with batch renormalisation, whose training reads statistics of earlier "
            f"raw batches; got renorm=True in {layer.name!r}. Make the layer with renorm=False, or use 'unprotected'"
        )
    if not 0 <= layer.momentum <= 1:
        raise IncompatibleModel(f"momentum must be in [0, 1]; got momentum={layer.momentum!r} in {layer.name!r}")
    if layer.built and not all(v.dtype.startswith(("float", "bfloat")) for v in moving_statistics([layer])):
        raise IncompatibleModel(f"moving statistics must be floating-point; got others in {layer.name!r}")


def check_penalties(model: keras.Model, sampling: Any) -> None:
    """Refuses activity penalties where padding rows would enter their batch mean."""
    if not sampling.masked or sampling.is_individual:
        return
    for layer in model._flatten_layers(include_self=True, recursive=True):
        if getattr(layer, "activity_regularizer", None) is not None:
            raise IncompatibleModel(
                f"layers must have no activity regularizer where contributions are padded ({sampling.name} groups); got "
                f"{layer.name!r}. Use Shuffling or Subsampling, or individual clipping"
            )


def warn_of_preprocessing(model: keras.Model) -> None:
    """Adapted preprocessing layers hold statistics of the data they saw; no guarantee of ours covers them."""
    kinds = tuple(
        getattr(keras.layers, name)
        for name in ("Normalization", "Discretization", "TextVectorization", "StringLookup", "IntegerLookup")
        if hasattr(keras.layers, name)
    )
    for layer in model._flatten_layers(include_self=False, recursive=True):
        if isinstance(layer, kinds):
            warnings.warn(
                f"layer {layer.name!r} ({type(layer).__name__}) may hold statistics or a vocabulary of the data it was "
                "adapted to; the guarantee covers them only if that data was public",
                stacklevel=3,
            )


def data_written_state(model: keras.Model, statistics: str | None) -> list[Any]:
    """The variables that a round writes from data beside the trainable ones, all of them batch normalisation's: through a
    noised block if `private`, from raw data if `unprotected`."""
    layers = batch_normalizations(model)
    if statistics == "private":
        return moving_statistics(layers)
    return [v for layer in layers for v in layer.non_trainable_variables] if statistics == "unprotected" else []
