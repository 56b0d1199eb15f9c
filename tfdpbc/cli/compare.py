"""`tfdpbc compare`: plans side by side under one promise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import click

from tfdpbc import _validate
from tfdpbc.cli import answers, contest, options
from tfdpbc.cli.base import Command

PLANS = (
    ("poisson", "individual"),
    ("balls-in-bins", "individual"),
    ("subsampling", "individual"),
    ("shuffling", "individual"),
    ("subsampling", "batch"),
    ("shuffling", "batch"),
)


@click.command(cls=Command)
@options.compared_plans
@click.option(
    "--num-parameters",
    type=int,
    default=1,
    help="d: the signal of a round is taken to be spread evenly over d weights.",
)
@contest.add_options
@answers.json_option
def compare(num_parameters: int, trains: bool, as_json: bool, **given: Any) -> None:
    """Put plans side by side that keep the same (epsilon, delta) on the same data.

    The signal-to-noise ratio is that of one weight in one round, if all clipped contributions have the full norm C and
    agree: m C / (sqrt(d) * noise std). The contribution of a batch is an average already, whose direction is less
    random than one example's; the ratio does not count that. Plans of different neighbouring relations promise
    different things under the same epsilon (replace is up to twice as strict as add/remove).

    With --train every kind of clipping is also trained at each promise, on the same model and data.
    """
    own = contest.split(given, trains)
    if trains:
        if num_parameters != 1:
            raise click.UsageError("--num-parameters is not for --train, where the model's weights are counted")
        contest.run(given, own, as_json)
        return
    _validate.integer("num_parameters", num_parameters, at_least=1)
    rows = []
    with answers.cautions():
        for sampling, clip in _plans(given):
            rows.append(_row({**given, "sampling": sampling, "clip": clip}, num_parameters))
    if as_json:
        answers.print_json({"epsilon": given["epsilon"], "delta": given["delta"], "plans": rows})
    else:
        click.echo(_table(rows, given))
    if all("refused" in row for row in rows):
        raise click.ClickException("no plan can keep this promise")


def _plans(given: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    if given["contributions"] is None:
        return list(PLANS)
    return [("subsampling", None), ("shuffling", None), ("poisson", None)]  # mixed: the options say m and s


def _row(given: Mapping[str, Any], num_parameters: int) -> dict[str, Any]:
    options.check(given)
    try:
        plan = options.make_plan(given, given["num_examples"])
    except ValueError as error:  # as UnreachableTarget is; the other plans may do
        return {"sampling": given["sampling"], "clipped": given["clip"] or "mixed", "refused": str(error)}
    stated = plan.guarantee(given["delta"])
    signal = plan.divisor / math.sqrt(num_parameters)  # in units of C
    noise = plan.noise_multiplier * plan.sampling.sensitivity_factor
    return {
        "sampling": given["sampling"],
        "clipped": given["clip"] or "mixed",
        "contributions": plan.divisor,
        "neighbouring": plan.neighbouring,
        "adversary": stated["adversary"],
        "rounds": plan.rounds,
        "noise_multiplier": plan.noise_multiplier,
        "noise_std_over_norm": noise,
        "epsilon": stated["epsilon"],
        "signal_to_noise_per_round": signal / noise,
        "signal_to_noise_of_all_rounds": signal / noise * math.sqrt(plan.rounds),
        "plan": plan.to_config(),
    }


def _table(rows: list[dict[str, Any]], given: Mapping[str, Any]) -> str:
    titles = f"{'m':>6}{'rounds':>9}{'noise σ':>10}{'std/C':>9}{'SNR/round':>11}{'SNR·√T':>11}  {'ε':>7}  neighbouring"
    lines = [
        f"Promise: ε = {given['epsilon']:g}, δ = {given['delta']:g}, {given['epochs']} epochs",
        f"{'sampling':<14}{'clipped':<12}{titles}",
    ]
    for row in rows:
        name = f"{row['sampling']:<14}{row['clipped']:<12}"
        if "refused" in row:
            lines.append(f"{name}  {row['refused']}")
            continue
        lines.append(
            f"{name}{row['contributions']:>6}{row['rounds']:>9}{row['noise_multiplier']:>10.4g}"
            f"{row['noise_std_over_norm']:>9.4g}{row['signal_to_noise_per_round']:>11.4g}"
            f"{row['signal_to_noise_of_all_rounds']:>11.4g}  {row['epsilon']:>7.4f}  {row['neighbouring']}"
        )
    strong = [f"{row['sampling']} ({row['clipped']})" for row in rows if "stronger" in row.get("adversary", "")]
    if strong:
        lines.append(f"Against a stronger adversary than the usual one: {', '.join(strong)}.")
    return "\n".join(lines)
