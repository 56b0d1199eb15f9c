"""`tfdpbc account`: what a plan guarantees, without training."""

from __future__ import annotations

import math
from typing import Any

import click

from tfdpbc.cli import answers, options
from tfdpbc.cli.base import Command


@click.command(cls=Command)
@options.stated_plan
@click.option("--group-size", type=int, default=1, help="g, the size of the protected group of examples.")
@answers.json_option
def account(group_size: int, as_json: bool, **given: Any) -> None:
    """State the guarantee of a plan, by every method that applies.

    Needs the size of the data (--num-examples, or --rate for Poisson) and the noise (--noise-multiplier, or --epsilon
    to calibrate it first).
    """
    options.check(given)
    if given["noise_multiplier"] is None and given["epsilon"] is None:
        raise click.UsageError("--noise-multiplier is missing (or --epsilon)")
    plan = options.make_plan(given, given["num_examples"])
    delta = given["delta"]
    with answers.cautions():
        bounds = plan.bounds(delta, group_size=group_size)
    if not as_json:
        click.echo(plan.describe(delta, group_size=group_size))
        click.echo(_table(bounds, plan.adversary))
        return
    curve = plan.trade_off(group_size=group_size)
    atoms, left_out = answers.participation(plan.participation(group_size))
    answers.print_json(
        {
            "epsilon": curve.epsilon(delta),
            "delta": delta,
            "adversary": plan.adversary,
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
        certified = "certified" if found["certified"] else "not certified"
        other = "" if found["adversary"] == adversary else f"; adversary: {found['adversary']}"
        lines.append(f"  {method:<{width}}  ε = {_up(found['epsilon'])}  ({certified}{other})")
    return "\n".join(lines)


def _up(epsilon: float) -> str:
    """Four decimals, rounded up: a printed epsilon is never below the truth."""
    return f"{math.ceil(epsilon * 1e4) / 1e4:.4f}" if math.isfinite(epsilon) else "infinite"
