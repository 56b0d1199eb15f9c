"""A table of what computes a model's contributions, layer by layer, and what that costs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tfdpbc.gradients.engine import Engine
from tfdpbc.gradients.onepass import OnePassEngine, cost, support


class Report(NamedTuple):
    """What computes the contributions of a model, and what it costs.

    Attributes:
      engine: its name.
      reason: why this one, and why so many contributions at once.
      layers: a `LayerCost` for each layer with trainable weights; empty where input sizes are not known.
    """

    engine: str
    reason: str
    layers: list[cost.LayerCost]

    def __str__(self) -> str:
        head = ("layer", "kind", "rule", "norms from", "Mflop", "KiB")
        body = [(c.layer, c.kind, c.rule, c.norms, f"{c.megaflops:.2f}", f"{c.kibibytes:.1f}") for c in self.layers]
        widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head))]
        aligned = [
            "  ".join(t.rjust(w) if i > 3 else t.ljust(w) for i, (t, w) in enumerate(zip(row, widths, strict=True)))
            for row in (head, *body)
        ]
        return "\n".join([f"engine: {self.reason}", "norms and weighted sum, for one contribution:", *aligned])


def report(engine: Engine, reason: str, examples: int, inputs: Any = None) -> Report:
    """The report on a built engine; arguments as for `build_engine`, `examples` is s."""
    model = engine.function.model
    inputs = support.sized(support.inputs_of(model) if inputs is None else inputs)
    if isinstance(engine, OnePassEngine):
        layers = [] if inputs is None else cost.trace(engine, inputs, examples).layers
    else:
        how = "a backward pass each" if engine.contributions_per_pass == 1 else "tf.vectorized_map"
        layers = []
        for layer in model._flatten_layers(include_self=False, recursive=True):
            numbers = sum(math.prod(v.shape) for v in layer._trainable_variables if v.trainable)
            if numbers:  # its square and its weighted sum, one operation a number each
                size = numbers / 1e6 * 4, numbers * 4 / 2**10
                layers.append(cost.LayerCost(layer.name, type(layer).__name__, "none needed", how, *size))
    return Report(engine.name, reason, layers)
