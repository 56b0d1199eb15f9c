"""May this model train under this plan? What would break the guarantee is refused here, before any data is read."""

from __future__ import annotations

import warnings
from typing import Any

import keras

from tfdpbc import _validate
from tfdpbc.errors import IncompatibleModel

STATISTICS = ("unprotected",)
"""How the moving statistics of batch normalisation may be treated; there is no silent default among them."""


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
        enter the statistics; and where nothing says what becomes of the moving statistics.
    """
    if statistics is not None:
        _validate.choice("statistics", statistics, STATISTICS)
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
            "from raw data and no noise covers them. statistics='unprotected' keeps them and voids the stated guarantee of "
            "the released model; got statistics=None"
        )


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
    """The variables that a round writes from data outside the noise: batch normalisation's, if left unprotected."""
    if statistics != "unprotected":
        return []
    return [v for layer in batch_normalizations(model) for v in layer.non_trainable_variables]
