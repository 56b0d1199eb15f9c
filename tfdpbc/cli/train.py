"""`tfdpbc train`: the main job."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from tfdpbc import models
from tfdpbc.cli import answers, defaults, options
from tfdpbc.cli.base import Command
from tfdpbc.cli.quiet import load_tensorflow
from tfdpbc.data.corruption import Attack
from tfdpbc.reporting.run_folder import RunFolder, check_free

_SETTINGS_OF_A_RESUME = ("resume", "as_json")


@click.command(cls=Command)
@click.option("--dataset", default=defaults.DATASET, help="glyphs (built in), or the name of a TFDS data set.")
@click.option("--data-dir", type=click.Path(), help="Folder of prepared TFDS data sets.")
@click.option("--examples", type=int, help="Train on the first so many examples only.")
@click.option("--model", type=click.Choice(models.names()), default=defaults.MODEL, help="What is trained.")
@click.option("--activation", help="Activation of the model, a Keras name.  [default: the model's own]")
@click.option("--normalization", type=click.Choice(models.NORMALIZATIONS), help="For models that can have it.")
@click.option(
    "--statistics",
    type=click.Choice(defaults.STATISTICS),
    help="Batch normalisation's moving statistics: noised and charged; from public data; of the batch at hand; raw (void).",
)
@click.option(
    "--public-share", type=float, help="Hold out this part of the training set as public, for the statistics."
)
@click.option(
    "--augment",
    type=click.Choice(defaults.AUGMENTS),
    default=defaults.AUGMENTS[0],
    help="paper: pad 4, random crop, random flip, and standardising by public constants inside the model.",
)
@click.option(
    "--augmentations",
    type=int,
    default=defaults.AUGMENTATIONS,
    help="Augmentations of an example whose mean gradient is clipped; costs time, no privacy.",
)
@click.option("--averaging", type=float, help="Decay of an average of the weights, which is then what is exported.")
@options.trained_plan
@click.option(
    "--algorithm", type=click.Choice(defaults.ALGORITHMS), default=defaults.ALGORITHMS[0], help="A of Algorithm 1."
)
@options.local_optimizer
@click.option("--learning-rate", type=float, default=defaults.LEARNING_RATE, help="Step size of SGD.")
@click.option(
    "--learning-rate-decay", type=float, default=defaults.LEARNING_RATE_DECAY, help="Factor after each epoch."
)
@click.option("--momentum", type=float, default=defaults.MOMENTUM, help="Momentum of SGD.")
@click.option(
    "--engine", type=click.Choice(defaults.ENGINES), default=defaults.ENGINES[0], help="How contributions are computed."
)
@click.option("--physical-batch-size", type=int, help="Examples computed at once; changes memory, no result.")
@click.option("--attack", help="Experiment: corrupt a share of the training set, KIND:SHARE such as label:0.1.")
@click.option("--seed", type=int, help="Makes the run repeatable, and private only from those who do not know it.")
@click.option("--out", type=click.Path(path_type=Path), help="Run folder to write.  [default: runs/DATASET-TIME]")
@click.option(
    "--resume", type=click.Path(path_type=Path), help="Go on with the run of this folder; no other option fits."
)
@answers.json_option
@click.pass_context
def train(ctx: click.Context, out: Path | None, resume: Path | None, as_json: bool, **given: Any) -> None:
    """Train a Keras model under a stated guarantee.

    Writes a run folder: config.json, history.csv, guarantee.json, trade_off.csv, checkpoints/, model/ (a SavedModel)
    and report.html.
    """
    if resume is not None:
        _refuse_others(ctx)
        folder, path = RunFolder(resume), resume
    else:
        options.check(given)
        folder, path = (
            None,
            out or Path("runs", f"{given['dataset'].replace('/', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"),
        )
        check_free(path)
        if given["attack"] is not None:
            Attack.parse(given["attack"])
        noiseless = given["aggregation"] in options.NOT_PRIVATE
        if given["epsilon"] is None and given["noise_multiplier"] is None and not noiseless:
            given["epsilon"] = defaults.EPSILON
    load_tensorflow()
    from tfdpbc.cli.job import Job

    with answers.cautions():
        job = Job.start(given, path) if folder is None else Job.resume(folder)
    if not as_json:
        click.echo(job.describe())
    job.run(verbose=0 if as_json else 1 if sys.stdout.isatty() else 2)
    if as_json:
        answers.print_json(job.summary())
    else:
        click.echo(job.words())


def _refuse_others(ctx: click.Context) -> None:
    """A resumed run is the run that was begun: its options are those of its `config.json`."""
    given = [
        parameter.opts[0]
        for parameter in ctx.command.params
        if parameter.name not in _SETTINGS_OF_A_RESUME
        and ctx.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(f"--resume takes the options of the run; it cannot change {', '.join(given)}")
