"""`tfdpbc calibrate`: the noise that keeps a promise."""

from __future__ import annotations

from typing import Any

import click

from tfdpbc.cli import answers, options
from tfdpbc.cli.base import Command


@click.command(cls=Command)
@options.promised_plan
@answers.json_option
def calibrate(as_json: bool, **given: Any) -> None:
    """Find the smallest noise multiplier with which a plan keeps (epsilon, delta).

    Needs the size of the data: --num-examples, or --rate for Poisson sampling.
    """
    options.check(given)
    with answers.cautions():
        plan = options.make_plan(given, given["num_examples"])
        reached = plan.epsilon(given["delta"])
    if as_json:
        answers.print_json(
            {
                "noise_multiplier": plan.noise_multiplier,
                "epsilon": reached,
                "delta": given["delta"],
                "target_epsilon": given["epsilon"],
                "neighbouring": plan.neighbouring,
                "adversary": plan.adversary,
                "rounds": plan.rounds,
            }
        )
    else:
        click.echo(f"noise multiplier: {plan.noise_multiplier!r}")
        click.echo(plan.describe(given["delta"]))
