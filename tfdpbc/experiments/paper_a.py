"""Paper A: generalised DP-SGD. Its text names σ = 2 and the accuracies, not C, the batch size or the epochs: they are swept."""

from __future__ import annotations

from dataclasses import replace

from tfdpbc.experiments.setting import Experiment, Setting, Sweep, names

_SIGMA = 2.0
_NOTES = (
    "batch: noise of std 2Cσ on the one clipped batch gradient, as Algorithm 1 says; its guarantee is that of σ = 2.",
    "divided: that noise divided by the batch size; its guarantee is that of σ = 2/(batch size), which is weaker by "
    "that factor and says nothing.",
    "C, batch size, epochs, model and augmentation are not in the paper's text: sweep them, and compare the best.",
    "Individual clipping has group normalisation in place of batch normalisation, which it excludes.",
    "Moving statistics of batch normalisation are raw here: the guarantee is that of the noisy updates.",
)
GROUPS = "a-groups"


def _settings(base: Setting, batch: float, individual: float) -> tuple[tuple[Setting, ...], tuple[Sweep, ...]]:
    """The trainings for one data set; `batch` and `individual` are the claims in percent."""
    base = replace(base, clipping="full", public_share=0.0, noise_multiplier=_SIGMA, norm=0.2)
    made, sweeps = [], []
    for kind, divided in (("batch", False), ("divided", True)):
        one = replace(base, sampling="shuffling", noise_divided=divided, claimed=(batch,))
        norms = [replace(one, name=f"{kind}-C={norm:g}", norm=norm) for norm in (0.05, 0.2, 1.0)]
        sizes = [replace(one, name=f"{kind}-m={size}", batch_size=size) for size in (64, 256, 1024)]
        made += norms + sizes
        sweeps.append(Sweep("norm", f"clipping norm C ({kind})", names(tuple(norms))))
        sweeps.append(Sweep("batch_size", f"batch size ({kind})", names(tuple(sizes))))
    # The step and momentum of `tfdpbc train`: the noise of a round is spread over m = 1024 clipped vectors.
    dp_sgd = replace(
        base,
        clip="individual",
        normalization="group",
        sampling="subsampling",
        batch_size=1024,
        learning_rate=2.0,
        learning_rate_decay=1.0,
        momentum=0.9,
        claimed=(individual,),
    )
    norms = [replace(dp_sgd, name=f"individual-C={norm:g}", norm=norm) for norm in (0.05, 0.1, 0.5)]
    small = replace(
        dp_sgd, name="individual-m=64", batch_size=64, learning_rate=0.025, learning_rate_decay=0.9, momentum=0.0
    )
    sweeps.append(Sweep("norm", "clipping norm C (individual)", names(tuple(norms))))
    plain = replace(base, name="no-dp", clip=None, noise_multiplier=0.0, claimed=(batch,), approximate=True)
    return (*made, *norms, small, plain), tuple(sweeps)


def _experiment(name: str, base: Setting, batch: float, individual: float) -> Experiment:
    settings, sweeps = _settings(base, batch, individual)
    return Experiment(
        name=name,
        paper="A",
        title=f"{base.model} on {base.dataset}, σ = 2: batch clipping with shuffling, DP-SGD, no privacy",
        where="Section 1, contributions (simulation)",
        claim=f"{batch:g} % with batch clipping and shuffling, {individual:g} % with individual clipping and "
        "subsampling, about the same without privacy",
        settings=settings,
        sweeps=sweeps,
        notes=_NOTES,
    )


EXPERIMENTS = (
    # A mirrored digit is often no digit: MNIST is not augmented where the paper does not ask for it.
    _experiment("a-mnist", Setting(name="", dataset="mnist", model="bn_lenet5", augment=False), 98.3, 98.4),
    _experiment("a-cifar10", Setting(name="", dataset="cifar10", model="convnet"), 71.5, 71.1),
    Experiment(
        name=GROUPS,
        paper="A",
        title="group privacy for g = 1..64: exact, √(gE)/σ, g√E/σ (accounting alone)",
        where="Table 1, Section 5",
        claim="μ grows as √g with batch clipping and shuffling; general group privacy gives g",
    ),
)
