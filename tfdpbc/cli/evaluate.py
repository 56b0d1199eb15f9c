"""`tfdpbc evaluate`: an exported model on data, and the guarantee that travels inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from tfdpbc import _validate
from tfdpbc.cli import answers, defaults
from tfdpbc.cli.base import Command
from tfdpbc.cli.quiet import load_tensorflow
from tfdpbc.errors import DataError


@click.command(cls=Command)
@click.option("--saved-model", type=click.Path(path_type=Path), required=True, help="A SavedModel, or a run folder.")
@click.option("--dataset", default=defaults.DATASET, help="glyphs (built in), or the name of a TFDS data set.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder of prepared TFDS data sets.")
@click.option("--split", default="test", help="Split to evaluate on.")
@click.option("--examples", type=int, help="Use the first so many examples only.")
@click.option(
    "--batch-size",
    type=int,
    default=500,
    help="Examples per forward pass; changes no result, but where the model normalises by the batch.",
)
@answers.json_option
def evaluate(
    saved_model: Path,
    dataset: str,
    data_dir: Path | None,
    split: str,
    examples: int | None,
    batch_size: int,
    as_json: bool,
) -> None:
    """Accuracy and loss of an exported model, and its guarantee."""
    _validate.integer("batch_size", batch_size, at_least=1)
    load_tensorflow()
    from tfdpbc import data, guarantee
    from tfdpbc.export import load_exported

    inside = saved_model / "model"
    exported = load_exported(inside if inside.is_dir() else saved_model)
    loaded = data.load(dataset, data_dir=data_dir, split=split, limit=examples)
    accuracy, loss = score(exported.predict(loaded.scaled(), batch_size), loaded.y)
    if as_json:
        answers.print_json(
            {
                "accuracy": accuracy,
                "loss": loss,
                "dataset": dataset,
                "split": split,
                "num_examples": len(loaded.y),
                "guarantee": exported.guarantee,
            }
        )
        return
    click.echo(f"accuracy {accuracy:.4f}, loss {loss:.4f} on {len(loaded.y)} examples of {dataset} ({split})")
    click.echo(guarantee.sentence(exported.guarantee))


def score(logits: Any, labels: Any) -> tuple[float, float]:
    """(accuracy, mean cross-entropy in nats) of logits ``[N, classes]`` for integer labels ``[N]``.

    Raises:
      DataError: the model has another number of outputs than the labels need.
    """
    logits, labels = np.asarray(logits, np.float64), np.asarray(labels)
    if logits.ndim != 2 or labels.max() >= logits.shape[1]:
        raise DataError(
            f"the model must give one logit per class; got outputs {logits.shape} for labels up to {labels.max()}"
        )
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=1))
    loss = log_sum - shifted[np.arange(len(labels)), labels]
    return float((logits.argmax(axis=1) == labels).mean()), float(loss.mean())
