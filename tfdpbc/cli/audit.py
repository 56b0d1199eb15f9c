"""`tfdpbc audit`: attacks on the guarantee, by training on neighbouring data sets."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import click
from click.core import ParameterSource

from tfdpbc.cli import answers, options
from tfdpbc.cli.base import Command
from tfdpbc.cli.quiet import load_tensorflow

_OWN = ("runs", "noise_scale", "confidence", "everything", "seed", "delta", "as_json")
_COLUMNS = ("claimed ε", "certified ε", "same kind ε", "false alarm", "miss", "allowed", "verdict")
_HEAD = "  ".join([f"{'plan: worst case':<58}", *(f"{name:>11}" for name in _COLUMNS)])


@click.command(cls=Command)
@options.stated_plan
@click.option("--all", "everything", is_flag=True, help="A tiny plan for every sampling and aggregation.")
@click.option("--runs", type=int, default=500, help="Trainings on each of two neighbouring data sets.")
@click.option("--confidence", type=float, default=0.99, help="That everything certified is true.")
@click.option("--noise-scale", type=float, default=1.0, help="Test of the audit: draw so many times the plan's noise.")
@click.option("--seed", type=int, help="Make it reproducible.")
@answers.json_option
@click.pass_context
def audit(
    ctx: click.Context,
    everything: bool,
    runs: int,
    confidence: float,
    noise_scale: float,
    seed: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Attack a plan's guarantee: train on worst-case neighbouring data sets and certify how much the updates tell.

    Every training runs all rounds of the plan, so give it a small one (or --all). Exit status 1 if a claim is refuted.
    """
    options.check(given)
    if everything:
        stated = [p for p in ctx.params if p not in _OWN and ctx.get_parameter_source(p) is ParameterSource.COMMANDLINE]
        if stated:
            raise click.UsageError(f"--all has plans of its own: leave out --{stated[0].replace('_', '-')}")
    elif given["noise_multiplier"] is None and given["epsilon"] is None:
        raise click.UsageError("--noise-multiplier is missing (or --epsilon, or --all)")
    load_tensorflow()
    from tfdpbc.audit import attack
    from tfdpbc.audit.plans import all_plans

    plans = all_plans() if everything else {_name(given): options.make_plan(given, given["num_examples"])}
    settings = {"runs": runs, "delta": given["delta"], "noise_scale": noise_scale, "seed": seed}
    if not as_json:
        scale = "" if noise_scale == 1 else f" noise times {noise_scale:g} (a test of the audit);"
        click.echo(
            f"{runs} + {runs} trainings for each worst case;{scale} ε at δ = {given['delta']:g}; "
            f"confidence {confidence:g} over all rows together."
        )
        click.echo(_HEAD)
    found = []
    for name, finding in attack.audits(plans, confidence, **settings):
        found.append((name, finding))
        if not as_json:
            click.echo(_row(name, finding))
    violated = any(finding.violated for _, finding in found)
    if as_json:
        rows = [{"plan": name, **dataclasses.asdict(finding)} for name, finding in found]
        answers.print_json({"violated": violated, "confidence": confidence, "noise_scale": noise_scale, "audits": rows})
    if violated:
        ctx.exit(1)


def _name(given: dict[str, Any]) -> str:
    return given["sampling"] if given["aggregation"] == "sum" else f"{given['sampling']}, {given['aggregation']}"


def _row(name: str, finding: Any) -> str:
    # A bound from above is rounded up, one from below down.
    up, down = math.ceil(finding.claimed * 100) / 100, (finding.certified, finding.same_kind)
    numbers = [f"{up:.2f}", *(f"{math.floor(x * 100) / 100:.2f}" for x in down)]
    numbers += [f"{x:.4f}" for x in (finding.errors.alpha, finding.errors.beta, finding.allowed)]
    verdict = "VIOLATED" if finding.violated else "not refuted"
    return "  ".join([f"{f'{name}: {finding.world}':<58}", *(f"{text:>11}" for text in (*numbers, verdict))])
