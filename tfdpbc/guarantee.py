"""A guarantee in words, and what it covers; the numbers are those of `analyses`."""

from __future__ import annotations

import importlib.metadata
import math
from typing import Any

NEIGHBOURING = {
    "replace": "data sets of the same size that differ in {examples} (replace)",
    "add-remove": "data sets of which one has {examples} more than the other (add/remove)",
}


def covers(protected: list[str], void: str | None = None) -> dict[str, list[str]]:
    """What the guarantee covers and what it does not, in words."""
    not_covered = [
        "training loss and metrics on the private data (progress bar, history)",
        "weights, preprocessing and hyper-parameters chosen on the private data before or beside this training",
        "validation and test results, for the examples they were computed on",
        "running time, and floating-point or generator weaknesses",
    ]
    if void:
        return {"covered": [], "not_covered": [void, *not_covered]}
    return {"covered": protected, "not_covered": not_covered}


def versions() -> dict[str, str]:
    """Versions of the packages that the guarantee rests on."""
    found = {}
    for name in ("tfdpbc", "tensorflow", "keras", "dp-accounting", "numpy", "scipy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def sentence(guarantee: dict[str, Any]) -> str:
    """A `guarantee` dictionary in words."""
    group = guarantee["group_size"]
    examples = "one example" if group == 1 else f"up to {group} examples"
    if guarantee["epsilon"] is None:
        return f"No guarantee: {guarantee['covers']['not_covered'][0]}."
    mu = "" if guarantee["mu"] is None else f" It is {guarantee['mu']:.6g}-Gaussian DP."
    extra = guarantee.get("plan", {}).get("statistics")
    extra = (
        f" (and σ_s = {extra['noise_ratio'] * guarantee['noise_multiplier']:.6g} of its statistics)" if extra else ""
    )
    text = (
        f"(ε = {rounded_up(guarantee['epsilon'])}, δ = {guarantee['delta']:g})-differential privacy for "
        f"{NEIGHBOURING[guarantee['neighbouring']].format(examples=examples)}, after {guarantee['rounds']} rounds of "
        f"{guarantee['sampling']} sampling with noise multiplier {guarantee['noise_multiplier']:.6g}{extra}.{mu} "
        f"Adversary: {guarantee['adversary']}."
    )
    return " ".join([text, *guarantee.get("warnings", [])])


def describe(guarantee: dict[str, Any]) -> str:
    """The sentence, then what is and what is not covered, a line each."""
    lines = [sentence(guarantee)]
    if guarantee["covers"]["covered"]:
        lines.append("Covered: " + "; ".join(guarantee["covers"]["covered"]) + ".")
    lines.append("Not covered: " + "; ".join(guarantee["covers"]["not_covered"]) + ".")
    return "\n".join(lines)


def rounded_up(epsilon: float) -> str:
    """ε to four digits, rounded up: a published number never falls below the truth."""
    if epsilon == 0:
        return "0"
    digits = max(0, 3 - math.floor(math.log10(epsilon)))
    return f"{math.ceil(epsilon * 10**digits) / 10**digits:.{digits}f}"
