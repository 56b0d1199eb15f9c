"""Paper B: batch clipping and adaptive layer-wise clipping.

All of it: SGD of step 0.025·0.9^epoch over 50 epochs, 1/10 of the training set held out as public (the layers' expected
norms are measured on 20 of its batches at the start of each epoch), pad 4, random crop and flip, test with the moving
statistics of batch normalisation, which its guarantee (formula (4), for subsampled rounds) does not cover.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tfdpbc.experiments.setting import Experiment, Setting, Sweep, names, swept

_C, _SIGMA, _BATCH = "clipping norm C", "noise multiplier σ", "batch size"
_CONVNET = Setting(name="", dataset="cifar10", model="convnet", noise_multiplier=0.5, norm=0.14)
# Section A.2 crops 32 x 32 from a 28 x 28 image padded by 4: shifts of up to 2.
_LENET = Setting(name="", dataset="mnist", model="bn_lenet5", pad=2, noise_multiplier=0.5, norm=0.2)
_RESNET = Setting(name="", dataset="cifar10", model="resnet18", noise_multiplier=0.01875, norm=0.095)
_BATCHES = (64, 128, 256, 512, 1024)
_LAYERS = {"bn_lenet5": 8, "convnet": 9, "resnet18": 41}  # L with batch normalisation; a test counts them
_VOID = "Moving statistics of batch normalisation are raw, as in the paper: the guarantee is that of the noisy updates."
_MU = "The paper's μ is a central limit formula for subsampled rounds, which is not certified; ε beside it is."
_USELESS = "At this σ no guarantee is left, as the paper says itself."


def _convnet_sigma_small() -> Experiment:
    base = replace(_CONVNET, noise_multiplier=0.01875, batch_size=1024)
    settings = swept(base, "norm", "C", (0.05, 0.1, 0.2, 0.4, 0.9, 1.2), claimed={0.9: (59.02,)})
    return Experiment(
        name="b-convnet-sigma-small",
        paper="B",
        title="ConvNet on CIFAR-10 with hardly any noise: sweep of C",
        where="Section A.1, Figure 6",
        claim="59.02 % at C = 0.9; rises up to C = 0.2, stable up to 0.9, falls slightly after",
        settings=settings,
        sweeps=(Sweep("norm", _C, names(settings)),),
        notes=(_USELESS, _VOID),
    )


def _convnet_sigma_large() -> Experiment:
    base = replace(_CONVNET, batch_size=1024)
    settings = swept(base, "norm", "C", (0.05, 0.1, 0.14, 0.2, 0.4), claimed={0.1: (40.58,)})
    return Experiment(
        name="b-convnet-sigma-large",
        paper="B",
        title="ConvNet on CIFAR-10, σ = 0.5, batch 1024: sweep of C",
        where="Section A.1, Figure 7",
        claim="40.58 % at C = 0.1, falling for larger C",
        settings=settings,
        sweeps=(Sweep("norm", _C, names(settings)),),
        notes=(_VOID,),
    )


def _convnet_no_dp() -> Experiment:
    base = replace(_CONVNET, clip=None, noise_multiplier=0.0)
    settings = swept(base, "batch_size", "batch", (64, 1024), claimed={64: (80.55,), 1024: (61.19,)})
    return Experiment(
        name="b-convnet-no-dp",
        paper="B",
        title="ConvNet on CIFAR-10 without privacy (plain Keras)",
        where="Section A.1, Figure 8",
        claim="80.55 % at batch 64, 61.19 % at 1024",
        settings=settings,
        sweeps=(Sweep("batch_size", _BATCH, names(settings)),),
    )


def _convnet_batch_64() -> Experiment:
    norms = swept(_CONVNET, "norm", "C", (0.05, 0.1, 0.14, 0.2, 0.3), claimed={0.14: (43.42,)})
    noises = swept(_CONVNET, "noise_multiplier", "sigma", (0.01, 0.2, 0.5, 0.6), claimed={0.5: (35.0,)})
    noises = tuple(replace(one, approximate=bool(one.claimed)) for one in noises)
    batches = swept(_CONVNET, "batch_size", "batch", _BATCHES, claimed={64: (40.0,)})
    batches = tuple(replace(one, approximate=bool(one.claimed)) for one in batches)
    return Experiment(
        name="b-convnet-batch-64",
        paper="B",
        title="ConvNet on CIFAR-10: sweeps of C, of σ and of the batch size",
        where="Section A.1, Figures 9 and 10",
        claim="43.42 % at C = 0.14; σ from 0.01 to 0.2 loses about 15 points, to 0.6 about 10 more; about 40 % by batch",
        settings=norms + noises + batches,
        sweeps=(
            Sweep("norm", _C, names(norms)),
            Sweep("noise_multiplier", _SIGMA, names(noises)),
            Sweep("batch_size", _BATCH, names(batches)),
        ),
        notes=("C=0.14, sigma=0.5 and batch=64 are one training, for which the paper names three accuracies.", _VOID),
    )


def _lenet_c() -> Experiment:
    settings = swept(_LENET, "norm", "C", (0.05, 0.1, 0.2, 0.3, 0.5), claimed={0.2: (84.80,)})
    return Experiment(
        name="b-lenet-c",
        paper="B",
        title="BN-LeNet-5 on MNIST, σ = 0.5: sweep of C",
        where="Section A.2, Figure 11",
        claim="84.80 % at C = 0.2, the best",
        settings=settings,
        sweeps=(Sweep("norm", _C, names(settings)),),
        notes=(_VOID,),
    )


def _lenet_sigma() -> Experiment:
    claims = {"claimed": {0.5: (84.80,), 1.5: (67.0,), 2.5: (50.38,)}, "claimed_mu": {1.5: 1.99, 2.5: 0.52}}
    settings = swept(_LENET, "noise_multiplier", "sigma", (0.5, 1.0, 1.5, 2.0, 2.5), **claims)
    settings = tuple(replace(one, approximate=one.name == "sigma=1.5") for one in settings)
    return Experiment(
        name="b-lenet-sigma",
        paper="B",
        title="BN-LeNet-5 on MNIST: the noise it bears",
        where="Section A.2, Figure 12.b",
        claim="50.38 % at σ = 2.5 with G_0.52; about 67 % at σ = 1.5 with G_1.99",
        settings=settings,
        sweeps=(Sweep("noise_multiplier", _SIGMA, names(settings)),),
        notes=(_MU, _VOID),
    )


def _lenet_batch() -> Experiment:
    base = replace(_LENET, noise_multiplier=2.5)
    claimed = {64: (50.38,), 1024: (45.11,)}
    settings = swept(base, "batch_size", "batch", _BATCHES, claimed=claimed, claimed_mu={64: 0.52})
    return Experiment(
        name="b-lenet-batch",
        paper="B",
        title="BN-LeNet-5 on MNIST, σ = 2.5: sweep of the batch size",
        where="Section A.2, Figure 12.a",
        claim="falls from 50.38 % at 64 to 45.11 % at 1024",
        settings=settings,
        sweeps=(Sweep("batch_size", _BATCH, names(settings)),),
        notes=(_MU, _VOID),
    )


def _bn_ablation() -> Experiment:
    return Experiment(
        name="b-bn-ablation",
        paper="B",
        title="ConvNet on CIFAR-10 with and without batch normalisation",
        where="Section A.3, Figure 14",
        claim="about 5 points higher with batch normalisation",
        settings=(
            replace(_CONVNET, name="alc-bn"),
            replace(_CONVNET, name="alc-no-bn", normalization="none"),
            replace(_CONVNET, name="fgc-bn", clipping="full", note="not in the paper"),
            replace(_CONVNET, name="fgc-no-bn", clipping="full", normalization="none", note="not in the paper"),
            replace(_CONVNET, name="no-dp-bn", clip=None, noise_multiplier=0.0, note="Figure 13"),
            replace(
                _CONVNET, name="no-dp-no-bn", clip=None, noise_multiplier=0.0, normalization="none", note="Fig. 13"
            ),
        ),
        notes=(_VOID,),
    )


def _decays(base: Setting, prefix: str = "", **claimed: tuple[float, ...]) -> tuple[Setting, ...]:
    """Constant and diminishing step and C, all four combinations."""
    return tuple(
        replace(
            base,
            name=f"{prefix}{step}-step-{norm}-C",
            learning_rate_decay=0.9 if step == "decaying" else 1.0,
            norm_decay=0.9 if norm == "decaying" else 1.0,
            claimed=claimed.get(f"{step}_{norm}", claimed.get("all", ())),
        )
        for step in ("constant", "decaying")
        for norm in ("constant", "decaying")
    )


def _individual() -> Experiment:
    base = replace(_CONVNET, normalization="none", clip="individual", norm=0.095)
    return Experiment(
        name="b-individual",
        paper="B",
        title="ConvNet without batch normalisation on CIFAR-10, individual clipping",
        where="Section A.3, Figure 15",
        claim="21.12 % with constant step and constant C, which is the best",
        settings=_decays(base, constant_constant=(21.12,)),
        notes=("σ is that of the ablation (0.5); the text of Section A.3 does not repeat it.",),
    )


def _resnet() -> Experiment:
    full = replace(_RESNET, clipping="full")
    return Experiment(
        name="b-resnet",
        paper="B",
        title="ResNet-18 on CIFAR-10: layer-wise against full-gradient clipping",
        where="Section A.4, Figure 18",
        claim="66.66 % with ALC, 46.35 % with FGC under equal noise; ALC above FGC under equal guarantees too",
        settings=(
            replace(_RESNET, name="alc", claimed=(66.66,)),
            replace(full, name="fgc", claimed=(46.35,)),
            replace(
                full, name="fgc-sigma/sqrt62", noise_multiplier=0.01875 / math.sqrt(62), note="the paper's discount"
            ),
            replace(full, name="fgc-equal-mu", noise_multiplier=0.01875 / math.sqrt(41), note="L = 41 here"),
            replace(_RESNET, name="grouped", clipping="grouped", num_groups=4, note="the paper's remedy for √L"),
        ),
        notes=(
            "The paper counts 62 parameter tensors; here a block is a layer (20 convolutions, 20 BN, 1 dense): L = 41.",
            _USELESS,
            _VOID,
        ),
    )


def _resnet_no_bn() -> Experiment:
    base = replace(_RESNET, normalization="none")
    batch = _decays(base, "bc-", all=(30.0, 40.0))
    individual = _decays(replace(base, clip="individual"), "ic-", all=(18.0, 22.0))
    return Experiment(
        name="b-resnet-no-bn",
        paper="B",
        title="ResNet-18 without batch normalisation on CIFAR-10: batch against individual clipping",
        where="Section A.3, Figures 16 and 17",
        claim="30–40 % with batch clipping, 18–22 % with individual clipping",
        settings=batch + individual,
        notes=(_USELESS,),
    )


def _equal_mu(base: Setting, prefix: str) -> tuple[Setting, ...]:
    """ALC, and what costs less than its √L, at the noise multiplier that gives the same guarantee."""
    layers, sigma, norm = _LAYERS[base.model], base.noise_multiplier, base.norm
    one, wide = sigma / math.sqrt(layers), norm * math.sqrt(layers)
    groups = 4
    return (
        replace(base, name=f"{prefix}-alc"),
        replace(base, name=f"{prefix}-fgc", clipping="full", noise_multiplier=one),
        replace(base, name=f"{prefix}-fgc-wide", clipping="full", noise_multiplier=one, norm=wide),
        replace(base, name=f"{prefix}-scaled", clipping="scaled", noise_multiplier=one),
        replace(base, name=f"{prefix}-scaled-wide", clipping="scaled", noise_multiplier=one, norm=wide),
        replace(
            base,
            name=f"{prefix}-grouped",
            clipping="grouped",
            num_groups=groups,
            noise_multiplier=sigma * math.sqrt(groups / layers),
        ),
    )


def _multipliers() -> Experiment:
    loud = replace(_LENET, noise_multiplier=2.5)
    individual = replace(loud, clip="individual", normalization="group")  # group normalisation: 8 layers too
    settings = (
        *_equal_mu(_LENET, "lenet-0.5"),
        replace(_LENET, name="lenet-0.5-fgc-same-noise", clipping="full", note="equal noise, not equal μ"),
        *_equal_mu(loud, "lenet-2.5"),
        *_equal_mu(individual, "lenet-2.5-ic"),
        *_equal_mu(_CONVNET, "convnet-0.5"),
    )
    return Experiment(
        name="b-multipliers",
        paper="B",
        title="ScaledClipping (multiplication factors) against ALC, FGC and groups at equal μ",
        where="Section B, future work",
        claim="not claimed: the robustness of ALC without its factor √L",
        settings=settings,
        notes=(
            "Within a prefix all settings have the noise multiplier that gives one guarantee; wide: C times √L.",
            _VOID,
        ),
    )


EXPERIMENTS = tuple(
    make()
    for make in (
        *(_convnet_sigma_small, _convnet_sigma_large, _convnet_no_dp, _convnet_batch_64),
        *(_lenet_c, _lenet_sigma, _lenet_batch, _bn_ablation, _individual, _resnet, _resnet_no_bn, _multipliers),
    )
)
