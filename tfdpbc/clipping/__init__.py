"""Clipping: Keras-serialisable layers from block norms ``[m, L]`` to weights ``[m, L]``."""

from __future__ import annotations

from typing import Any

from tfdpbc import _validate
from tfdpbc.clipping.automatic import AutomaticClipping
from tfdpbc.clipping.base import Clipping
from tfdpbc.clipping.blocks import layers_of
from tfdpbc.clipping.estimates import FixedNorms, PrivateNorms, PublicNorms, ReleasedNorms
from tfdpbc.clipping.full import FullGradientClipping
from tfdpbc.clipping.grouped import GroupedClipping
from tfdpbc.clipping.layerwise import LayerwiseClipping
from tfdpbc.clipping.quantile import QuantileClipping
from tfdpbc.clipping.scaled import ScaledClipping

__all__ = [
    "AutomaticClipping",
    "Clipping",
    "FixedNorms",
    "FullGradientClipping",
    "GroupedClipping",
    "LayerwiseClipping",
    "PrivateNorms",
    "PublicNorms",
    "QuantileClipping",
    "ReleasedNorms",
    "ScaledClipping",
    "by_name",
    "from_config",
    "layers_of",
]

_KINDS = (
    FullGradientClipping,
    LayerwiseClipping,
    GroupedClipping,
    ScaledClipping,
    QuantileClipping,
    AutomaticClipping,
)
by_name = {kind.config_name: kind for kind in _KINDS}


def from_config(config: dict[str, Any]) -> Clipping:
    """The inverse of `Clipping.to_config`."""
    fields = dict(config)
    kind = by_name[_validate.choice("clipping", fields.pop("name", None), by_name)]
    return kind(**fields)
