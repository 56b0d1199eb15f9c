"""`tfdpbc reproduce`: the experiments of the papers, at any scale."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tfdpbc import _validate
from tfdpbc.cli import answers, defaults
from tfdpbc.cli.base import Command
from tfdpbc.cli.quiet import load_tensorflow
from tfdpbc.experiments import many, paper_a, paper_c, registry
from tfdpbc.experiments.setting import Experiment


@click.command(cls=Command)
@click.argument("name", required=False, metavar="NAME")
@click.option("--list", "as_list", is_flag=True, help="List the experiments, a line for each; with NAME its settings.")
@click.option("--settings", help="Run these settings only: names, separated by commas.")
@click.option("--epochs", type=int, help="Epochs of each training.  [default: the paper's]")
@click.option("--examples", type=int, help="Train on the first so many examples only.")
@click.option("--seeds", type=int, default=1, help="Trainings of each setting, with seeds 0, 1, ...")
@click.option("--data-dir", type=click.Path(), help="Folder of prepared TFDS data sets.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the results.  [default: runs/reproduce-NAME]")
@click.option("--guarantees", is_flag=True, help="Train nothing: state the guarantees, beside what is finished.")
@click.option("--delta", type=float, default=defaults.DELTA, help="delta of the guarantees.")
@answers.json_option
def reproduce(
    name: str | None,
    as_list: bool,
    settings: str | None,
    epochs: int | None,
    examples: int | None,
    seeds: int,
    data_dir: str | None,
    out: Path | None,
    guarantees: bool,
    delta: float,
    as_json: bool,
) -> None:
    """Reproduce an experiment of the papers: what is claimed beside what comes out.

    Each finished training is a line of OUT/results.jsonl, each unfinished one a checkpoint: the same command goes on where
    it was interrupted, and trains nothing twice. Prints a table and draws OUT/*.svg.
    """
    if name is not None and name not in registry.names():
        close = difflib.get_close_matches(name, registry.names(), n=1)
        hint = f"did you mean {close[0]}?" if close else "--list shows them"
        raise click.UsageError(f"no experiment has the name {name!r}; {hint}")
    if as_list:
        _list(name, as_json)
        return
    if name is None:
        raise click.UsageError("NAME is missing; --list shows the experiments")
    for option, value in (("epochs", epochs), ("examples", examples), ("seeds", seeds)):
        if value is not None:
            _validate.integer(option, value, at_least=1)
    _validate.probability("delta", delta)
    experiment = registry.get(name)
    out = out or Path("runs", f"reproduce-{name}")
    chosen = None if settings is None else [one.strip() for one in settings.split(",")]
    picked = registry.chosen(experiment, chosen)
    load_tensorflow()
    if name in (paper_a.GROUPS, paper_c.ACCOUNTING):
        _accounting(experiment, epochs, examples, out, guarantees, delta, as_json)
        return
    from tfdpbc.experiments import robust_tables, runner, tables
    from tfdpbc.experiments.results import Results

    if name == many.NAME:
        scale = runner.Scale(epochs, examples, seeds)
        _many(experiment, picked, scale, Results(out), data_dir, guarantees, as_json)
        return
    scale, results = runner.Scale(epochs, examples, seeds), Results(out)
    with answers.cautions():
        refused = {}
        if not guarantees:
            tell: Callable[[str], None] = (lambda line: None) if as_json else (lambda line: click.echo(line, err=True))
            try:
                refused = runner.run(experiment, picked, scale, results, data_dir, tell)
            except KeyboardInterrupt:
                raise click.ClickException(f"interrupted; the same command goes on, with --out {out}") from None
        rows = runner.summarise(experiment, picked, scale, results, delta)
    robust = experiment.paper == "C"
    files = _draw(out, robust_tables.pictures(rows) if robust else tables.pictures(experiment, rows))
    if as_json:
        answers.print_json(
            {**_facts(experiment), "scale": vars(scale), "delta": delta, "rows": rows, "refused": refused}
            | {"out": str(out), "plots": files}
        )
        return
    click.echo((robust_tables if robust else tables).text(experiment, rows, refused, delta))
    if files:
        click.echo(f"Results: {results.path}; plots: {', '.join(files)}")


def _accounting(
    experiment: Experiment,
    epochs: int | None,
    examples: int | None,
    out: Path,
    guarantees: bool,
    delta: float,
    as_json: bool,
) -> None:
    """Accounting alone: nothing is trained, nothing need be resumed."""
    from tfdpbc.experiments import groups, ptr_curves, robust_tables, tables

    scale = {name: value for name, value in (("epochs", epochs), ("examples", examples)) if value is not None}
    ptr = experiment.name == paper_c.ACCOUNTING
    if ptr and scale:
        raise click.UsageError(f"{experiment.name} has no data set: --epochs and --examples say nothing there")
    with answers.cautions():
        rows = ptr_curves.table(delta) if ptr else groups.table(delta, **scale)
    pictures = robust_tables.accounting_pictures if ptr else tables.groups_picture
    files = [] if guarantees else _draw(out, pictures(rows))
    if as_json:
        answers.print_json({**_facts(experiment), "scale": scale, "delta": delta, "rows": rows, "plots": files})
        return
    click.echo((robust_tables.accounting_text if ptr else tables.groups_text)(experiment, rows, delta))
    if files:
        click.echo(f"Plot: {', '.join(files)}")


def _many(
    experiment: Experiment,
    picked: tuple[Any, ...],
    scale: Any,
    results: Any,
    data_dir: str | None,
    guarantees: bool,
    as_json: bool,
) -> None:
    """Simulated networks of clients: finished ones are kept, one that was interrupted begins anew."""
    from tfdpbc.experiments import federation

    with answers.cautions():
        if not guarantees:
            tell: Callable[[str], None] = (lambda line: None) if as_json else (lambda line: click.echo(line, err=True))
            try:
                federation.run(picked, scale, results, data_dir, tell)
            except KeyboardInterrupt:
                raise click.ClickException(
                    f"interrupted; the same command goes on, with --out {results.folder}"
                ) from None
        rows = federation.summarise(picked, scale, results)
    files = _draw(results.folder, federation.pictures(rows))
    if as_json:
        facts = {**_facts(experiment), "scale": vars(scale), "rows": rows, "out": str(results.folder), "plots": files}
        answers.print_json(facts)
        return
    click.echo(federation.text(experiment, rows))
    if files:
        click.echo(f"Results: {results.path}; plots: {', '.join(files)}")


def _draw(out: Path, pictures: dict[str, bytes]) -> list[str]:
    if pictures:
        out.mkdir(parents=True, exist_ok=True)
    for name, content in pictures.items():
        (out / name).write_bytes(content)
    return [str(out / name) for name in pictures]


def _facts(experiment: Experiment) -> dict[str, Any]:
    words = ("name", "paper", "title", "where", "claim")
    return {("experiment" if word == "name" else word): getattr(experiment, word) for word in words} | {
        "notes": list(experiment.notes)
    }


def _list(name: str | None, as_json: bool) -> None:
    experiments = [registry.get(one) for one in registry.names() if name in (None, one)]
    if as_json:
        answers.print_json(
            {"experiments": [{**_facts(e), "settings": [s.name for s in e.settings]} for e in experiments]}
        )
        return
    width = max(len(one.name) for one in experiments)
    for one in experiments:
        click.echo(f"{one.name:<{width}}  {one.title}")
        if name is not None:
            for setting in one.settings:
                click.echo(f"  {setting.name}: claimed {setting.claim}")
