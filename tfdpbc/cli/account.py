"""`tfdpbc account`: what a plan guarantees, without training."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import click

from tfdpbc import guarantee
from tfdpbc.cli import answers, options
from tfdpbc.cli.base import Command

PLOTTED_GROUPS = (1, 2, 4, 8, 16, 32, 64)


@click.command(cls=Command)
@options.stated_plan
@click.option("--group-size", type=int, default=1, help="g, the size of the protected group of examples.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw the guarantee: .svg, .png or .pdf.")
@answers.json_option
def account(group_size: int, plot: Path | None, as_json: bool, **given: Any) -> None:
    """State the guarantee of a plan, by every method that applies.

    Needs the size of the data (--num-examples, or --rate for Poisson) and the noise (--noise-multiplier, or --epsilon
    to calibrate it first).
    """
    options.check(given)
    if given["noise_multiplier"] is None and given["epsilon"] is None:
        raise click.UsageError("--noise-multiplier is missing (or --epsilon)")
    if plot is not None:
        answers.check_picture(plot)
    plan = options.make_plan(given, given["num_examples"])
    delta = given["delta"]
    with answers.cautions():
        bounds = plan.bounds(delta, group_size=group_size)
    stated = plan.guarantee(delta, group_size=group_size)
    curve = plan.trade_off(group_size=group_size)
    if plot is not None:
        _draw(plan, curve, delta, group_size, plot)
    if not as_json:
        click.echo(guarantee.describe(stated))
        click.echo(_table(bounds, stated["adversary"]))
        return
    atoms, left_out = answers.participation(plan.participation(group_size))
    answers.print_json(
        {
            "epsilon": stated["epsilon"],
            "delta": delta,
            "adversary": stated["adversary"],
            "neighbouring": plan.neighbouring,
            "group_size": group_size,
            "noise_multiplier": plan.noise_multiplier,
            "rounds": plan.rounds,
            "mu": curve.mu,
            "bounds": bounds,
            "trade_off": answers.sampled(curve),
            "participation": atoms,
            "participation_left_out": left_out,
        }
    )


def _table(bounds: dict[str, dict[str, Any]], adversary: str) -> str:
    width = max(map(len, bounds))
    lines = ["Methods:"]
    for method, found in bounds.items():
        if found["kind"] == "lower":
            value, status = f"ε ≥ {_down(found['epsilon'])}", "for some model and data so much is given away"
        else:
            value = f"ε = {_up(found['epsilon'])}"
            status = "certified" if found["certified"] else "not certified"
            if found["kind"] == "renyi-lower":
                status = "no black-box Rényi bound can state less"
        other = "" if found["adversary"] == adversary else f"; adversary: {found['adversary']}"
        lines.append(f"  {method:<{width}}  {value}  ({status}{other})")
    return "\n".join(lines)


def _draw(plan: Any, curve: Any, delta: float, group_size: int, path: Path) -> None:
    """The trade-off curve, and ε (μ where all are Gaussian) against the group size and against the epochs."""
    from tfdpbc.reporting import plots

    most = getattr(plan.sampling, "num_examples", max(PLOTTED_GROUPS))
    groups = sorted({g for g in (*PLOTTED_GROUPS, group_size) if g <= most})
    # Epochs up to twice the plan's, so that the reader sees what going on would cost.
    epochs = sorted({max(1, round(2 * plan.epochs * i / 12)) for i in range(1, 13)} | {plan.epochs})
    series = {}
    for name, made in (
        ("group size g", [(g, plan.trade_off(g)) for g in groups]),
        ("epochs E", [(e, dataclasses.replace(plan, epochs=e).trade_off(group_size)) for e in epochs]),
    ):
        gaussian = all(one.mu is not None for _, one in made)
        points = [(x, one.mu if gaussian else one.epsilon(delta)) for x, one in made]
        series[name] = ("μ" if gaussian else f"ε at δ = {delta:g}", points)
    path.write_bytes(plots.account(answers.sampled(curve), series, path.suffix[1:]))


def _up(epsilon: float) -> str:
    """Four decimals, rounded up: a printed epsilon is never below the truth."""
    return f"{math.ceil(epsilon * 1e4) / 1e4:.4f}" if math.isfinite(epsilon) else "infinite"


def _down(epsilon: float) -> str:
    """Four decimals, rounded down: a printed lower bound is never above the truth."""
    return f"{math.floor(epsilon * 1e4) / 1e4:.4f}" if math.isfinite(epsilon) else "infinite"
