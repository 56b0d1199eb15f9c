"""Which layers of a model are blocks."""

from __future__ import annotations

from typing import Any

from tfdpbc.errors import IncompatibleModel


def layers_of(model: Any) -> list[tuple[Any, list[int]]]:
    """The layer objects that own trainable variables, each with its positions in `model.trainable_variables`.

    In the order of their first trainable variable. A layer that is used several times is one; a variable that several
    layers use belongs to the one that made it. Layers inside of layers (cells, sub-models, the projections of an attention
    layer) count on their own, frozen ones not at all.

    Raises:
      IncompatibleModel: the model is not built, or a variable belongs to no layer.
    """
    if not model.built:
        raise IncompatibleModel(
            f"model must be built before its layers can be blocks; got model={model.name!r} without weights. Give it an "
            "Input, or call it on one batch"
        )
    owner: dict[int, Any] = {}
    for layer in model._flatten_layers(include_self=True, recursive=True):
        for variable in layer._trainable_variables:
            owner.setdefault(id(variable), layer)
    found: dict[int, tuple[Any, list[int]]] = {}
    for position, variable in enumerate(model.trainable_variables):
        layer = owner.get(id(variable))
        if layer is None:
            raise IncompatibleModel(f"every trainable variable must belong to a layer; got {variable.path!r}")
        found.setdefault(id(layer), (layer, []))[1].append(position)
    return list(found.values())
