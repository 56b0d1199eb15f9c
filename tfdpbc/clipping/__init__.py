"""Clipping: Keras-serialisable layers from block norms ``[m, L]`` to weights ``[m, L]``."""

from __future__ import annotations

from typing import Any

from tfdpbc import _validate
from tfdpbc.clipping.base import Clipping
from tfdpbc.clipping.full import FullGradientClipping

__all__ = ["Clipping", "FullGradientClipping", "by_name", "from_config"]

by_name = {kind.config_name: kind for kind in (FullGradientClipping,)}


def from_config(config: dict[str, Any]) -> Clipping:
    """The inverse of `Clipping.to_config`."""
    fields = dict(config)
    kind = by_name[_validate.choice("clipping", fields.pop("name", None), by_name)]
    return kind(**fields)
