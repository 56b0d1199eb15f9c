"""From the public fields of a plan to what may be said about it: trade-off function, bounds, words.

This is an interpreter: it knows which theorem belongs to which sampling and refuses what it does not know.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
from typing import Any

from tfdpbc import sampling as samplings

MIXTURE_ADVERSARY = (
    "sees every noisy update and also learns how many contributions of each round hold a differing example "
    "(stronger than the usual adversary)"
)
USUAL_ADVERSARY = "sees every noisy update and knows every other example; which examples a round used stays secret"

NEIGHBOURING = {
    "replace": "data sets of the same size that differ in {examples} (replace)",
    "add-remove": "data sets of which one has {examples} more than the other (add/remove)",
}


@functools.lru_cache(maxsize=256)
def participation(sampling: samplings.Sampling, rounds: int, group_size: int) -> Any:
    """Exact distribution of c² = sum of k² over the rounds for a group, where the sampling has fixed sizes."""
    from tfdpbc.accounting import participation as exact

    compute = {"shuffling": exact.shuffling, "subsampling": exact.subsampling}[sampling.name]
    return compute(
        num_examples=sampling.num_examples,
        contributions=sampling.contributions,
        examples_per_contribution=sampling.examples_per_contribution,
        rounds=rounds,
        group_size=group_size,
    )


@functools.lru_cache(maxsize=256)
def trade_off(sampling: samplings.Sampling, noise_multiplier: float, rounds: int, group_size: int) -> Any:
    """The trade-off function that `rounds` released rounds keep for a group of `group_size` examples.

    Shuffling and subsampling: the mixture over c of Gaussian trade-off functions G_{c/σ} (paper A, Theorems 5.5, 5.6),
    exact for the adversary of `MIXTURE_ADVERSARY`. Poisson: the privacy loss distribution of the subsampled Gaussian
    mechanism for the usual adversary.
    """
    from tfdpbc import accounting

    if rounds == 0:
        return accounting.Gaussian(0.0)
    if noise_multiplier == 0:
        return accounting.Gaussian(math.inf)
    if sampling.name == "poisson":
        from tfdpbc.accounting import subsampled

        return subsampled.poisson(sampling.rate, noise_multiplier, rounds, group_size)
    exact = participation(sampling, rounds, group_size)
    return accounting.GaussianMixture.of(exact, noise_multiplier)


def adversary(sampling: samplings.Sampling) -> str:
    """Against whom `trade_off` holds."""
    return USUAL_ADVERSARY if sampling.name == "poisson" else MIXTURE_ADVERSARY


def bounds(
    sampling: samplings.Sampling, noise_multiplier: float, rounds: int, group_size: int, delta: float
) -> dict[str, dict[str, Any]]:
    """Every method that applies: name → {"epsilon", "adversary", "certified"}."""
    from tfdpbc import accounting
    from tfdpbc.accounting import participation as exact

    curve = trade_off(sampling, noise_multiplier, rounds, group_size)
    main = "pld" if sampling.name == "poisson" else "mixture"
    found = {main: {"epsilon": curve.epsilon(delta), "adversary": adversary(sampling), "certified": True}}
    if sampling.name != "poisson" and sampling.contributions == 1 and noise_multiplier > 0:
        # Table 1 of paper A. Shuffling: a bound, since c² <= g in each epoch; subsampling: only what large E tends to.
        shuffled, per_epoch = sampling.name == "shuffling", sampling.rounds_per_epoch
        if shuffled:
            mu = exact.shuffled_batch_mu(sampling.num_examples, rounds, per_epoch, noise_multiplier, group_size)
        else:
            mu = exact.asymptotic_mu(rounds / per_epoch, noise_multiplier, group_size)
        found["gaussian_bound"] = {
            "epsilon": accounting.Gaussian(mu).epsilon(delta),
            "adversary": MIXTURE_ADVERSARY,
            "certified": shuffled,
        }
    return found


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
    text = (
        f"(ε = {_up(guarantee['epsilon'])}, δ = {guarantee['delta']:g})-differential privacy for "
        f"{NEIGHBOURING[guarantee['neighbouring']].format(examples=examples)}, after {guarantee['rounds']} rounds of "
        f"{guarantee['sampling']} sampling with noise multiplier {guarantee['noise_multiplier']:.6g}.{mu} "
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


def _up(epsilon: float) -> str:
    """ε to four digits, rounded up: a published number never falls below the truth."""
    if epsilon == 0:
        return "0"
    digits = max(0, 3 - math.floor(math.log10(epsilon)))
    return f"{math.ceil(epsilon * 10**digits) / 10**digits:.{digits}f}"
