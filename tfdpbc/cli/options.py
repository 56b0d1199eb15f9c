"""The options that describe a plan, in one place for `train`, `account` and `calibrate`, and the plan made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import click

from tfdpbc import _validate, models
from tfdpbc.cli import defaults
from tfdpbc.cli.quiet import load_tensorflow

_POSITIVE = (
    *("noise_multiplier", "epsilon", "norm", "learning_rate", "local_learning_rate"),
    *("statistics_norm", "statistics_noise_ratio", "estimates_noise", "count_noise"),
    *("release_norm", "laplace_scale", "fail_noise_multiplier"),
)
_LOCAL = ("local_learning_rate", "passes", "minibatch_size")
_COUNTS = (
    *("epochs", "batch_size", "contributions", "examples_per_contribution"),
    *("num_examples", "rounds_per_epoch", "examples", "physical_batch_size", "passes", "minibatch_size"),
    *("num_groups", "num_blocks"),
)
_CLIP = click.Choice(["individual", "batch"])
_SHAPE = [
    click.option(
        "--sampling", type=click.Choice(defaults.SAMPLINGS), default=defaults.SAMPLING, help="How rounds are drawn."
    ),
    click.option("--clip", type=_CLIP, help=f"Clip each example or the whole batch.  [default: {defaults.CLIP}]"),
    click.option(
        "--batch-size",
        type=int,
        help=f"Examples per round (Poisson, balls-in-bins: expected).  [default: {defaults.BATCH_SIZE}]",
    ),
    click.option("--contributions", type=int, help="m, contributions per round: in place of --clip and --batch-size."),
    click.option("--examples-per-contribution", type=int, help="s, examples per contribution.  [default: 1]"),
]
_RULES = [
    click.option(
        "--clipping", type=click.Choice(defaults.CLIPPINGS), default=defaults.CLIPPING, help="What is clipped as one."
    ),
    click.option("--norm", type=float, default=defaults.NORM, help="C, the clipping norm."),
    click.option("--norm-decay", type=float, default=defaults.NORM_DECAY, help="Factor on the norm after each epoch."),
    click.option(
        "--norm-estimates",
        type=click.Choice(defaults.NORM_ESTIMATES),
        help=f"Where the layers' expected norms come from.  [default: {defaults.NORM_ESTIMATES[0]}]",
    ),
    click.option("--estimates-noise", type=float, help="Private estimates: noise std over sensitivity of a round's."),
    click.option("--num-groups", type=int, help="Grouped clipping: how many groups."),
    click.option("--num-blocks", type=int, help="L, the model's trainable layers; what trains counts them."),
    click.option("--count-noise", type=float, help="Quantile clipping: noise std on a round's count."),
    click.option("--target-quantile", type=float, help="Quantile clipping: share left unclipped.  [default: 0.5]"),
    click.option(
        "--aggregation",
        type=click.Choice(defaults.AGGREGATIONS),
        default=defaults.AGGREGATION,
        help="How contributions become one; the medians are not private.",
    ),
    click.option("--trim", type=int, help="Trimmed sums: F, how many of a round's largest contributions are left out."),
    click.option(
        "--release-norm", type=float, help="Trimmed: tau, the proposed sensitivity; noise tau * sigma on pass."
    ),
    click.option("--laplace-scale", type=float, help="Trimmed: scale of the noise on the test's margin."),
    click.option("--threshold", type=float, help="Trimmed: what the noisy margin must exceed."),
    click.option(
        "--fail-noise-multiplier", type=float, help="Trimmed: noise where the test fails.  [default: as on pass]"
    ),
    click.option("--epochs", type=int, default=defaults.EPOCHS, help="Epochs of the plan."),
    click.option("--delta", type=float, default=defaults.DELTA, help="delta of the guarantee; keep it well below 1/N."),
]
_STATISTICS = [
    click.option(
        "--statistics-norm",
        type=float,
        help=f"Private statistics: clipping norm of their block.  [default: {defaults.STATISTICS_NORM:g}]",
    ),
    click.option(
        "--statistics-noise-ratio",
        type=float,
        help=f"Private statistics: their noise multiplier over that of the gradient.  [default: "
        f"{defaults.STATISTICS_NOISE_RATIO:g}]",
    ),
]
_CHARGED = click.option(
    "--statistics", type=click.Choice(["private"]), help="Charge for private statistics of batch normalisation."
)
_NOISE = [click.option("--noise-multiplier", type=float, help="Noise std over sensitivity, in place of --epsilon.")]
_SIZE = [
    click.option("--num-examples", type=int, help="N, the size of the private data set."),
    click.option("--rate", type=float, help="Poisson: probability of joining a round, in place of --num-examples."),
    click.option(
        "--rounds-per-epoch",
        type=int,
        help="Poisson with --rate [default: 1/rate, rounded down]; balls-in-bins in place of --num-examples.",
    ),
]
_LOCAL_OPTIMIZER = [
    click.option(
        "--local-learning-rate",
        type=float,
        help=f"Step size of a local optimizer.  [default: {defaults.LOCAL_LEARNING_RATE:g}]",
    ),
    click.option("--passes", type=int, help=f"Its passes through each contribution.  [default: {defaults.PASSES}]"),
    click.option(
        "--minibatch-size", type=int, help=f"Examples in each of its steps.  [default: {defaults.MINIBATCH_SIZE}]"
    ),
]


def _all(options: list[Callable]) -> Callable[[Callable], Callable]:
    def decorate(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _epsilon(help_: str, **settings: Any) -> Callable:
    return click.option("--epsilon", type=float, help=help_, **settings)


trained_plan = _all(
    [
        *_SHAPE,
        *_RULES,
        *_STATISTICS,
        *_NOISE,
        _epsilon(f"Calibrate the noise to this promise.  [default: {defaults.EPSILON:g}]"),
    ]
)
_MODEL = click.option(
    "--model", type=click.Choice(models.names()), help="Count the layers of this model, in place of --num-blocks."
)
stated_plan = _all(
    [
        *(*_SIZE, *_SHAPE, *_RULES, _MODEL, _CHARGED, *_STATISTICS, *_NOISE),
        _epsilon("Calibrate the noise to this promise."),
    ]
)
compared_plans = _all([_SIZE[0], *_SHAPE[2:], *_RULES, _epsilon("The promise that all plans keep.")])
promised_plan = _all(
    [
        *(*_SIZE, *_SHAPE, *_RULES, _MODEL, _CHARGED, *_STATISTICS),
        _epsilon("The promise to calibrate the noise to.", required=True),
    ]
)
local_optimizer = _all(_LOCAL_OPTIMIZER)


def check(options: Mapping[str, Any]) -> None:
    """Refuses what can be refused before any data is read: contradicting options (usage) and impossible values.

    Raises:
      click.UsageError: options that exclude each other, or that the sampling has no use for.
      ValueError: a value no plan can have.
    """
    if options.get("noise_multiplier") is not None and options["epsilon"] is not None:
        raise click.UsageError("give --noise-multiplier or --epsilon, not both: each determines the other")
    if options["aggregation"] in NOT_PRIVATE and (options["epsilon"] is not None or options.get("noise_multiplier")):
        raise click.UsageError(
            f"--aggregation {options['aggregation']} is not private: it takes no --epsilon and no noise"
        )
    if options["contributions"] is not None and (options["clip"] is not None or options["batch_size"] is not None):
        raise click.UsageError("give --clip and --batch-size, or --contributions, not both: each determines the other")
    if options["examples_per_contribution"] is not None and options["contributions"] is None:
        raise click.UsageError("--examples-per-contribution needs --contributions")
    if options.get("rate") is not None and options["sampling"] != "poisson":
        raise click.UsageError(f"--rate is for Poisson sampling; {options['sampling']} needs --num-examples")
    if options["sampling"] == "balls-in-bins":
        if options["clip"] == "batch" or options["contributions"] is not None:
            raise click.UsageError(
                "balls-in-bins clips each example (--clip individual, --batch-size): no guarantee is known for batches"
            )
    elif options.get("rounds_per_epoch") is not None and options.get("rate") is None:
        raise click.UsageError("--rounds-per-epoch needs --rate, or --sampling balls-in-bins")
    if options.get("algorithm") == "batch-gradient":
        for name in _LOCAL:
            if options.get(name) is not None:
                raise click.UsageError(
                    f"--{name.replace('_', '-')} is for local optimizers (--algorithm local-sgd and so on)"
                )
    chosen, share = options.get("statistics"), options.get("public_share")
    for name in ("statistics_norm", "statistics_noise_ratio"):
        if options.get(name) is not None and chosen != "private":
            raise click.UsageError(f"--{name.replace('_', '-')} is for --statistics private")
    if (share is not None) != (chosen == "public"):
        raise click.UsageError(
            "--statistics public needs --public-share (the part of the training set that is public), and nothing else does"
        )
    if share is not None:
        _validate.probability("public_share", share)
    _check_clipping(options)
    _check_aggregation(options)
    for name in _POSITIVE:
        if options.get(name) is not None:
            _validate.number(name, options[name], above=0.0)
    _validate.probability("delta", options["delta"])
    for name in _COUNTS:
        if options.get(name) is not None:
            _validate.integer(name, options[name], at_least=1)


# Which clippings an option is for.
_LAYERS = ("layerwise", "grouped", "scaled")
_OF_CLIPPING = {
    "norm_estimates": _LAYERS,
    "estimates_noise": _LAYERS,
    "num_groups": ("grouped",),
    "num_blocks": _LAYERS,
    "count_noise": ("quantile",),
    "target_quantile": ("quantile",),
}


def _check_clipping(options: Mapping[str, Any]) -> None:
    kind = options["clipping"]
    for name, kinds in _OF_CLIPPING.items():
        if options.get(name) is not None and kind not in kinds:
            raise click.UsageError(f"--{name.replace('_', '-')} is for --clipping {' or '.join(kinds)}")
    for name, needed in (("num_groups", kind == "grouped"), ("count_noise", kind == "quantile")):
        if needed and options.get(name) is None:
            raise click.UsageError(f"--clipping {kind} needs --{name.replace('_', '-')}")
    if kind == "layerwise" and options.get("num_blocks") is None and options.get("model") is None:
        raise click.UsageError(
            "--clipping layerwise needs --num-blocks (or --model, where there is one): each block costs"
        )
    private = options.get("norm_estimates") == "private"
    if private != (options.get("estimates_noise") is not None):
        raise click.UsageError("--norm-estimates private and --estimates-noise need each other")
    if kind == "quantile" and options["norm_decay"] != defaults.NORM_DECAY:
        raise click.UsageError("--norm-decay is not for --clipping quantile, whose norm adapts itself")


NOT_PRIVATE = ("coordinate-median", "geometric-median")
_TRIM = {"trimmed": ("trim", "release_norm", "laplace_scale", "threshold"), "global-trimmed": ("trim",)}


def _check_aggregation(options: Mapping[str, Any]) -> None:
    kind = options["aggregation"]
    needed = _TRIM.get(kind, ())
    for name in (*_TRIM["trimmed"], "fail_noise_multiplier"):
        option = f"--{name.replace('_', '-')}"
        if name in needed and options.get(name) is None:
            raise click.UsageError(f"--aggregation {kind} needs {option}")
        if name not in needed and options.get(name) is not None and not (kind == "trimmed" and name.startswith("fail")):
            raise click.UsageError(f"{option} is not for --aggregation {kind}")


def _aggregation(options: Mapping[str, Any]) -> Any:
    from tfdpbc import aggregation

    kind = options["aggregation"]
    fields = {name: options[name] for name in _TRIM.get(kind, ())}
    if kind == "trimmed":
        fields["fail_noise_multiplier"] = options.get("fail_noise_multiplier")
    return aggregation.from_config({"name": kind, **fields})


def _clipping(options: Mapping[str, Any]) -> Any:
    """The clipping of the options; its layers are counted where a model is named."""
    from tfdpbc import clipping

    kind, norm, decay = options["clipping"], options["norm"], options["norm_decay"]
    if kind == "quantile":
        target = options.get("target_quantile")
        target = {} if target is None else {"target_quantile": target}
        return clipping.QuantileClipping(norm, options["count_noise"], **target)
    if kind not in _LAYERS:
        return clipping.from_config({"name": kind, "norm": norm, "decay": decay})
    estimates = {"name": options.get("norm_estimates") or defaults.NORM_ESTIMATES[0]}
    if options.get("estimates_noise") is not None:
        estimates["noise_multiplier"] = options["estimates_noise"]
    fields = {"decay": decay, "estimates": estimates, "num_blocks": options.get("num_blocks")}
    if kind == "grouped":
        fields["num_groups"] = options["num_groups"]
    made = clipping.by_name[kind](norm, **fields)
    if options.get("model") is None:
        return made
    normalization = {} if options.get("normalization") is None else {"normalization": options["normalization"]}
    # How many layers there are does not depend on the shape of the data.
    return made.for_model(models.build(options["model"], (32, 32, 3), 10, **normalization))


def make_plan(options: Mapping[str, Any], num_examples: int | None) -> Any:
    """The `PrivacyPlan` of the options for a data set of `num_examples` (None: Poisson with its rate given, or
    balls-in-bins with its rounds).

    The noise is calibrated where `epsilon` is set; `check` has been called before.
    """
    load_tensorflow()
    from tfdpbc.plan import PrivacyPlan

    noise = options.get("noise_multiplier")
    plan = PrivacyPlan(
        sampling=_sampling(options, num_examples),
        clipping=_clipping(options),
        # Small: what is calibrated must be a plan before, too. The medians take no noise, and no promise either.
        noise_multiplier=(0.0 if options["aggregation"] in NOT_PRIVATE else 1e-3) if noise is None else noise,
        epochs=options["epochs"],
        aggregation=_aggregation(options),
        statistics=_statistics(options),
    )
    return (
        plan
        if noise is not None or options["aggregation"] in NOT_PRIVATE
        else plan.calibrate(epsilon=options["epsilon"], delta=options["delta"])
    )


def _statistics(options: Mapping[str, Any]) -> Any:
    from tfdpbc.statistics import PrivateStatistics

    if options.get("statistics") != "private":
        return None
    norm, ratio = options.get("statistics_norm"), options.get("statistics_noise_ratio")
    return PrivateStatistics(
        defaults.STATISTICS_NORM if norm is None else norm,
        defaults.STATISTICS_NOISE_RATIO if ratio is None else ratio,
    )


def _sampling(options: Mapping[str, Any], num_examples: int | None) -> Any:
    from tfdpbc import sampling

    if options["sampling"] == "poisson":
        return _poisson(options, num_examples)
    if options["sampling"] == "balls-in-bins":
        return _balls_in_bins(options, num_examples)
    if num_examples is None:
        raise click.UsageError("--num-examples is missing")
    kind = {"shuffling": sampling.Shuffling, "subsampling": sampling.Subsampling}[options["sampling"]]
    m, s = _contributions(options)
    return kind(num_examples, m, s)


def _poisson(options: Mapping[str, Any], num_examples: int | None) -> Any:
    from tfdpbc.sampling import Poisson

    m, s = _contributions(options)
    # Contributions of one expected example are single examples, unless a batch (of expected size 1) is meant.
    groups = m if s > 1 or options["clip"] == "batch" else None
    rate, rounds = options.get("rate"), options.get("rounds_per_epoch")
    if rate is not None:
        _validate.probability("rate", rate, one=True)
        # The tolerance: 1/(1/49) is 48.99999999999999.
        rounds = int(1 / rate + 1e-9) if rounds is None else rounds
        return Poisson(rate, rounds, _expected_size(options, rate, num_examples), groups)
    if num_examples is None:
        raise click.UsageError("--num-examples is missing (or --rate)")
    return dataclasses.replace(Poisson.individual(num_examples, m * s), contributions=groups)


def _balls_in_bins(options: Mapping[str, Any], num_examples: int | None) -> Any:
    from tfdpbc.sampling import BallsInBins

    size, _ = _contributions(options)
    rounds = options.get("rounds_per_epoch")
    if rounds is None:
        if num_examples is None:
            raise click.UsageError("--num-examples is missing (or --rounds-per-epoch)")
        return BallsInBins.individual(num_examples, size)
    if num_examples is not None:
        if options["batch_size"] is not None:
            raise click.UsageError(
                "--num-examples with --rounds-per-epoch gives the size of a round; got --batch-size too"
            )
        size = -(-num_examples // rounds)
    return BallsInBins(rounds, size)


def _expected_size(options: Mapping[str, Any], rate: float, num_examples: int | None) -> int:
    """The planned size of a round whose rate is given: from N, else as the round is described, else the least there is.

    It divides the update and changes no guarantee.
    """
    if num_examples is not None:
        return max(1, round(rate * num_examples))
    m, s = _contributions(options)
    return m * s if (options["batch_size"] or options["contributions"]) else 1


def _contributions(options: Mapping[str, Any]) -> tuple[int, int]:
    """(m, s) of the options."""
    if options["contributions"] is not None:
        return options["contributions"], options["examples_per_contribution"] or 1
    size = defaults.BATCH_SIZE if options["batch_size"] is None else options["batch_size"]
    return (1, size) if options["clip"] == "batch" else (size, 1)
