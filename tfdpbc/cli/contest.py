"""`tfdpbc compare --train`: the plans of one promise, trained on the same model and data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from tfdpbc import _validate, models
from tfdpbc.cli import answers, defaults, options
from tfdpbc.cli.quiet import load_tensorflow
from tfdpbc.errors import TfdpbcError

PLANS = (("poisson", "individual"), ("subsampling", "individual"), ("subsampling", "mixed"), ("subsampling", "batch"))
CLIPPINGS = ("full", "layerwise", "grouped", "scaled")
EXAMPLES, BATCH_SIZE, GROUPS, LEARNING_RATES = 10_000, 250, 4, "0.1,1"
_LAYERS = ("layerwise", "grouped", "scaled")
# Options of --train alone, and what they are if they are not given.
DEFAULTS = {
    "dataset": defaults.DATASET,
    "data_dir": None,
    "model": defaults.MODEL,
    "normalization": None,
    "examples": EXAMPLES,
    "epsilons": None,
    "clippings": ",".join(CLIPPINGS),
    "learning_rates": LEARNING_RATES,
    "momentum": defaults.MOMENTUM,
    "seeds": 1,
    "plot": None,
}
_OPTIONS = [
    click.option("--train", "trains", is_flag=True, help="Train each plan, and print its accuracy beside."),
    click.option("--dataset", help=f"With --train: the data.  [default: {defaults.DATASET}]"),
    click.option("--data-dir", type=click.Path(), help="With --train: folder of prepared TFDS data sets."),
    click.option("--model", type=click.Choice(models.names()), help=f"With --train.  [default: {defaults.MODEL}]"),
    click.option("--normalization", type=click.Choice(models.NORMALIZATIONS), help="With --train: of the model."),
    click.option("--examples", type=int, help=f"With --train: the first so many.  [default: {EXAMPLES}]"),
    click.option("--epsilons", help="With --train: several promises, as 1,3,8, in place of --epsilon."),
    click.option("--clippings", help=f"With --train: which.  [default: {','.join(CLIPPINGS)}]"),
    click.option("--learning-rates", help=f"With --train: the best of these is shown.  [default: {LEARNING_RATES}]"),
    click.option("--momentum", type=float, help=f"With --train: of SGD.  [default: {defaults.MOMENTUM}]"),
    click.option("--seeds", type=int, help="With --train: trainings of each plan, with seeds 0, 1, ...  [default: 1]"),
    click.option(
        "--plot",
        type=click.Path(path_type=Path, dir_okay=False),
        help="With --train: draw accuracy against epsilon: .svg, .png or .pdf.",
    ),
]


def add_options(command: Any) -> Any:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def split(given: dict[str, Any], trains: bool) -> dict[str, Any]:
    """Takes the options of `--train` out of `given`, with their defaults.

    Raises:
      click.UsageError: options that do not belong together.
    """
    own = {name: given.pop(name) for name in DEFAULTS}
    named = [f"--{name.replace('_', '-')}" for name, value in own.items() if value is not None]
    if not trains:
        if named:
            raise click.UsageError(f"{named[0]} is for --train")
        if given["epsilon"] is None:
            raise click.UsageError("--epsilon is missing: the promise that all plans keep")
        return own
    if given["num_examples"] is not None:
        raise click.UsageError("--num-examples is not for --train, where the data set is counted (see --examples)")
    if (given["epsilon"] is None) == (own["epsilons"] is None):
        raise click.UsageError("--train needs --epsilon or --epsilons, and not both")
    own = {name: DEFAULTS[name] if value is None else value for name, value in own.items()}
    own["epsilons"] = _numbers("epsilons", own["epsilons"] or repr(given["epsilon"]))
    own["learning_rates"] = _numbers("learning_rates", own["learning_rates"])
    own["clippings"] = tuple(name.strip() for name in own["clippings"].split(","))
    for name in own["clippings"]:
        _validate.choice("clippings", name, CLIPPINGS)
    _validate.integer("seeds", own["seeds"], at_least=1)
    _validate.integer("examples", own["examples"], at_least=1)
    _validate.number("momentum", own["momentum"], at_least=0, below=1)
    if own["plot"] is not None:
        answers.check_picture(own["plot"])
    return own


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--{name.replace('_', '-')} must be numbers with commas between; got {text}") from None
    return tuple(_validate.number(name, value, above=0.0) for value in values)


def run(given: Mapping[str, Any], own: Mapping[str, Any], as_json: bool) -> None:
    """Trains and prints."""
    m, s = _mixed(given)
    options.check({**given, **_shape("subsampling", "individual", m, s)})
    load_tensorflow()
    from tfdpbc import data
    from tfdpbc.experiments.comparison import Contest

    train = data.load(own["dataset"], data_dir=own["data_dir"], split="train", limit=own["examples"])
    test = data.load(own["dataset"], data_dir=own["data_dir"], split="test")
    for part in (train, test):
        data.check_labels(part.y, train.num_classes)
    chosen = ("model", "normalization", "learning_rates", "momentum", "seeds")
    contest = Contest(train, test, **{name: own[name] for name in chosen})
    num_parameters, layers = contest.size()
    rows = []
    with answers.cautions():
        for plan in _plans(given, own, m, s, layers):
            rows.append(_row(plan, contest, num_parameters))
            if not as_json:
                click.echo(_progress(rows[-1]), err=True)
    if own["plot"] is not None:
        _draw(rows, own["plot"])
    facts = {"dataset": own["dataset"], "examples": len(train.y), "model": own["model"]}
    facts |= {
        "num_parameters": num_parameters,
        "num_layers": layers,
        "delta": given["delta"],
        "epochs": given["epochs"],
    }
    if as_json:
        answers.print_json({**facts, "epsilons": own["epsilons"], "seeds": own["seeds"], "plans": rows})
    else:
        click.echo(_table(rows, facts, own))
    if all("refused" in row for row in rows):
        raise click.ClickException("no plan could be trained")


def _mixed(given: Mapping[str, Any]) -> tuple[int, int]:
    """m and s of mixed clipping: as given, else about √batch of each."""
    if given["contributions"] is not None:
        return given["contributions"], given["examples_per_contribution"] or 1
    size = _validate.integer(
        "batch_size", BATCH_SIZE if given["batch_size"] is None else given["batch_size"], at_least=1
    )
    m = min((m for m in range(1, size + 1) if size % m == 0), key=lambda m: abs(math.log(m * m / size)))
    return m, size // m


def _shape(sampling: str, clip: str, m: int, s: int) -> dict[str, Any]:
    """The options of one way to cut a round of m s examples."""
    shape = {"sampling": sampling, "clip": None, "batch_size": None, "contributions": m, "examples_per_contribution": s}
    if clip != "mixed":
        shape |= {"clip": clip, "batch_size": m * s, "contributions": None, "examples_per_contribution": None}
    return shape


def _plans(given: Mapping[str, Any], own: Mapping[str, Any], m: int, s: int, layers: int) -> Iterator[dict[str, Any]]:
    """The options of each plan, the promises one after the other."""
    for epsilon in own["epsilons"]:
        for sampling, clip in PLANS:
            for kind in own["clippings"]:
                options_of = {**given, **_shape(sampling, clip, m, s), "epsilon": epsilon, "clipping": kind}
                options_of |= {"model": own["model"], "normalization": own["normalization"], "clipped": clip}
                if kind not in _LAYERS:
                    options_of |= {"norm_estimates": None, "estimates_noise": None, "num_blocks": None}
                groups = min(given["num_groups"] or GROUPS, layers)
                options_of["num_groups"] = groups if kind == "grouped" else None
                if kind == "scaled":  # paper B: the norm of the whole scaled vector
                    options_of["norm"] = given["norm"] * math.sqrt(layers)
                yield options_of


def _row(plan_options: Mapping[str, Any], contest: Any, num_parameters: int) -> dict[str, Any]:
    from tfdpbc.experiments.comparison import signal_to_noise

    row = {name: plan_options[name] for name in ("sampling", "clipped", "clipping", "norm")}
    row["target_epsilon"] = plan_options["epsilon"]
    try:
        options.check(plan_options)
        plan = options.make_plan(plan_options, len(contest.train.y))
        stated = plan.guarantee(plan_options["delta"])
        row |= {
            "contributions": plan.divisor,
            "num_blocks": plan.clipping.composed_blocks(),
            "noise_multiplier": plan.noise_multiplier,
            "rounds": plan.rounds,
            "epsilon": stated["epsilon"],
            "adversary": stated["adversary"],
            "neighbouring": plan.neighbouring,
            "signal_to_noise_per_round": signal_to_noise(plan, num_parameters),
        }
        return row | contest.best(plan)
    except (TfdpbcError, ValueError) as error:  # the other plans may do
        return row | {"refused": " ".join(str(error).split())}


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['clipped']}, {row['sampling']}, {row['clipping']}"


def _progress(row: Mapping[str, Any]) -> str:
    what = row.get("refused") or f"{row['accuracy']['mean']:.2f} %"
    return f"ε = {row['target_epsilon']:g}, {_name(row)}: {what}"


def _table(rows: list[dict[str, Any]], facts: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    several = len(own["learning_rates"]) > 1
    lines = [
        f"{facts['model']} ({facts['num_parameters']:,} weights, {facts['num_layers']} layers) on {facts['dataset']} "
        f"({facts['examples']:,} examples), {facts['epochs']} epochs, δ = {facts['delta']:g}",
        f"{'ε':>6}  {'clipped':<11}{'sampling':<13}{'clipping':<11}{'m':>6}{'rounds':>8}{'noise σ':>10}{'SNR/round':>11}"
        f"{'step':>7}  test accuracy",
    ]
    for row in rows:
        name = f"{row['target_epsilon']:>6g}  {row['clipped']:<11}{row['sampling']:<13}{row['clipping']:<11}"
        if "refused" in row:
            lines.append(f"{name}  {row['refused']}")
            continue
        spread = "" if row["accuracy"]["std"] is None else f" ± {row['accuracy']['std']:.2f}"
        lines.append(
            f"{name}{row['contributions']:>6}{row['rounds']:>8}{row['noise_multiplier']:>10.4g}"
            f"{row['signal_to_noise_per_round']:>11.4g}{row['learning_rate']:>7g}  {row['accuracy']['mean']:.2f} %{spread}"
        )
    lines.append("Neighbouring: add/remove under Poisson, replace under subsampling, which is up to twice as strict.")
    if several:
        lines.append("Steps were chosen by test accuracy: good for comparing plans, too good to be quoted as a result.")
    return "\n".join(lines)


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    from tfdpbc.reporting import plots

    series: dict[str, list[tuple[float, float, float | None]]] = {}
    for row in rows:
        if "refused" not in row:
            point = row["target_epsilon"], row["accuracy"]["mean"], row["accuracy"]["std"]
            series.setdefault(_name(row), []).append(point)
    path.write_bytes(plots.curves(series, "ε", "test accuracy (%)", kind=path.suffix[1:], log=True))
