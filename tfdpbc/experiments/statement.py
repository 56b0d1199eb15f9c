"""The plan of a setting, and what may be said of its privacy: the paper's figure beside the certified one."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from typing import Any

import keras

from tfdpbc import aggregation, clipping, data, models
from tfdpbc.accounting import clt_mu
from tfdpbc.accounting.participation import shuffled_batch_mu
from tfdpbc.clipping import PublicNorms
from tfdpbc.clipping.blocks import layers_of
from tfdpbc.compatibility import batch_normalizations
from tfdpbc.experiments.setting import SIZES, Robust, Setting
from tfdpbc.plan import PrivacyPlan
from tfdpbc.random import Streams
from tfdpbc.sampling import Poisson, Shuffling, Subsampling

PUBLIC_BATCHES = 20
"""How many public batches paper B measures the layers' norms on."""
SHAPES = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3)}
VOID = "void: raw moving statistics of batch normalisation"
NONE = "none: trained without privacy"
_SAMPLINGS = {"shuffling": Shuffling, "subsampling": Subsampling}


def build(setting: Setting, input_shape: tuple[int, ...], num_classes: int, seed: int | None = None) -> keras.Model:
    """The setting's model, which standardises its inputs by public constants. `seed` fixes its weights."""
    chosen = {"activation": setting.activation, "normalization": setting.normalization}
    options: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    if seed is not None:
        options["seed"] = int(Streams(seed).generator("init").integers(2**31))
    return models.build(
        setting.model,
        input_shape,
        num_classes,
        standardize=data.NORMALIZATION.get(setting.dataset, data.GENERIC),
        **options,
    )


def make_plan(setting: Setting, num_private: int, epochs: int, model: keras.Model) -> PrivacyPlan:
    """The plan of a setting on so many private examples.

    Raises:
      ValueError: fewer private examples than a round takes, or rounds too small for the test of Propose-Test-Release.
      UnreachableTarget: no noise keeps the promise of a setting of paper C.
    """
    if setting.robust is not None:
        # An attack is no part of a plan: what withstands it is planned once for all of them.
        asked = dataclasses.replace(setting.robust, attack=None, share=0.0, strength=0.0)
        return _robust_plan(asked, setting.norm, setting.batch_size, num_private, epochs).for_model(model)
    individual = setting.clip == "individual"
    shape = (setting.batch_size, 1) if individual else (1, setting.batch_size)
    fields: dict[str, Any] = {"decay": setting.norm_decay}
    if setting.clipping != "full":
        fields["estimates"] = PublicNorms(contributions=PUBLIC_BATCHES * shape[0])
    if setting.num_groups is not None:
        fields["num_groups"] = setting.num_groups
    return PrivacyPlan(
        sampling=_SAMPLINGS[setting.sampling](num_private, *shape),
        clipping=clipping.by_name[setting.clipping](setting.norm, **fields),
        noise_multiplier=setting.planned_noise,
        epochs=epochs,
    ).for_model(model)


@functools.lru_cache(maxsize=64)
def _robust_plan(robust: Robust, norm: float, batch_size: int, num_private: int, epochs: int) -> PrivacyPlan:
    """The plan of a setting of paper C: F and the test from public numbers, σ from the promise."""
    sampling = Poisson.individual(num_private, batch_size)
    if robust.aggregation == "trimmed":
        made: Any = aggregation.TrimmedSum.suggest(
            robust.epsilon, robust.delta, sampling, norm, robust.release_norm, epochs, robust.assumed
        )
    elif robust.aggregation == "global-trimmed":
        made = aggregation.GlobalTrimmedSum(aggregation.most_corrupted(sampling, robust.assumed))
    else:
        made = aggregation.Sum()
    plan = PrivacyPlan(sampling, clipping.FullGradientClipping(norm), 0.0, epochs, made)
    return plan if robust.epsilon is None else plan.calibrate(robust.epsilon, robust.delta)


def state(setting: Setting, num_private: int, epochs: int, delta: float, model: keras.Model) -> dict[str, Any]:
    """What is printed of a setting's privacy, JSON-able.

    Keys: `num_layers` (layers that own trainable variables: L of layer-wise clipping), `num_blocks` (how many Gaussians a
    hit round composes), `noise_multiplier` of the plan, `rounds`, `mu` (of shuffled batches: paper A's √E/σ, certified),
    `mu_clt` (paper B's central limit figure for subsampled rounds: not certified), `epsilon` (certified), `adversary`,
    `neighbouring`, `released_model` (whether the guarantee is also that of the model, or why not). What does not apply is None.
    """
    layers = len(layers_of(model))
    if not setting.private:
        return {"num_layers": layers, "released_model": NONE}
    plan = make_plan(setting, num_private, epochs, model)
    if plan.noise_multiplier == 0:
        return {"num_layers": layers, "released_model": NONE} | _of_round(plan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # δ against 1/N: of a scaled-down run
        stated = plan.guarantee(delta)
    blocks, share = plan.clipping.composed_blocks(), setting.batch_size / num_private
    mu, mu_clt, noise = None, None, plan.noise_multiplier / math.sqrt(blocks)
    if setting.sampling == "shuffling" and setting.clip == "batch":
        mu = shuffled_batch_mu(num_private, plan.rounds, plan.rounds_per_epoch, noise)
    elif setting.sampling == "subsampling":
        # Formula (4) counts E N/m rounds, whole or not.
        mu_clt = clt_mu(share, plan.noise_multiplier, epochs / share, blocks)
    return {
        "num_layers": layers,
        "num_blocks": blocks,
        "noise_multiplier": plan.noise_multiplier,
        "rounds": plan.rounds,
        "num_private": num_private,
        "epochs": epochs,
        "mu": mu,
        "mu_clt": mu_clt,
        "epsilon": stated["epsilon"],
        "delta": delta,
        "adversary": stated["adversary"],
        "neighbouring": stated["neighbouring"],
        "released_model": VOID if batch_normalizations(model) else "as the updates",
    } | _of_round(plan)


def _of_round(plan: PrivacyPlan) -> dict[str, Any]:
    """What a trimmed round is made of, and the share of failed tests that it was made for; nothing of other plans."""
    kind = plan.aggregation
    if not isinstance(kind, aggregation.GlobalTrimmedSum):
        return {}
    found = {"trim": kind.trim, "contributions": plan.sampling.divisor}
    if kind.tested:
        found |= {"release_norm": kind.release_norm, "laplace_scale": kind.laplace_scale, "threshold": kind.threshold}
    return found


def state_of_paper(setting: Setting, delta: float) -> dict[str, Any]:
    """`state` at the scale of the paper: its data set, its epochs."""
    model = build(setting, SHAPES[setting.dataset], 10)
    return state(setting, setting.num_private(SIZES[setting.dataset]), setting.epochs, delta, model)


def shown(value: float | None, digits: int = 4) -> str:
    """A figure for a table: of a bound rounded up in its last place, "–" where there is none."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "∞"
    if value == 0:
        return "0"
    place = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = math.ceil(value * 10**place - 1e-9) / 10**place
    return f"{rounded:.{max(0, place)}f}" if abs(rounded) < 1e5 else f"{rounded:.{digits - 1}e}"
