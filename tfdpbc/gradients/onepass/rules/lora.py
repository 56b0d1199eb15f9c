"""LoRA: what the rules of layers with adapters c A B have in common."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdpbc.gradients.onepass.recording import Call


def adapters(layer: Any, call: Call, of: str = "kernel") -> tuple[tuple[Any, Any], tuple[Any, Any]] | None:
    """(the variables A and B, the values c A and c B) of the adapters of a layer's kernel; None if it has none.

    A's gradient takes only B's value and B's only A's, so each has the factor once.
    """
    if not getattr(layer, "lora_enabled", False):
        return None
    a, b = (getattr(layer, f"lora_{of}_{end}") for end in "ab")
    c = layer.lora_alpha / layer.lora_rank
    # A frozen adapter is none of the pass's weights.
    left, right = (c * (call.value_of(v) if v.trainable else tf.convert_to_tensor(v.value)) for v in (a, b))
    return (a, b), (left, right)
