"""This library: `PrivateModel.fit` with the one-pass engine and the bare loop, as benchmarks/step.py has them."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from protocol import SHAPES, Ready, Unsupported, serve

sys.path.append(str(Path(__file__).parents[1]))
import step

VARIANTS = {"plain": "plain", "onepass": "individual, onepass"}


def make(name: str, variant: str, batches: int) -> Ready:
    if name not in step.SUBJECTS:
        raise Unsupported("not a model of benchmarks/step.py")
    train = step.variants(name, SHAPES[name].batch, batches)[VARIANTS[variant]]()

    def run(_: int) -> int:
        train()
        return batches * step.EPOCHS  # all of what `fit` and the bare loop did

    return Ready(run, step.SUBJECTS[name].build().count_params())


if __name__ == "__main__":
    packages = {"tfdpbc": "tfdpbc", "TensorFlow": "tensorflow", "Keras": "keras"}
    serve({title: version(package) for title, package in packages.items()}, make)
