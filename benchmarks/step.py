"""Step time of private training against plain Keras training of the same model, interleaved in one run.

    python benchmarks/step.py [--models tutorial_cnn,mlp] [--batch-size 256] [--repeats 15] [--markdown FILE]

Each repeat times a few steps of every variant one after the other, so that a slow moment of the machine hits all of them; a
ratio is the median over repeats of (variant / plain). Noise, optimizer and metrics are included on both sides where they are
on one. Both sides are `fit`, with its own loop.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tfdpbc as dp
from tfdpbc import models
from tfdpbc.gradients.auto import ENGINES

SHAPES = {"tutorial_cnn": (28, 28, 1), "mlp": (28, 28, 1), "bn_lenet5": (28, 28, 1), "convnet": (32, 32, 3)}


def build(name: str, batch_normalization: bool = False) -> keras.Model:
    options = {"batch_normalization": batch_normalization} if name in ("convnet", "bn_lenet5") else {}
    return models.build(name, SHAPES[name], 10, **options)


def compiled(model: keras.Model, **options) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, metrics=["accuracy"], jit_compile=False, **options)
    return model


def variants(name: str, batch: int, steps: int) -> dict:
    """Variant → function that runs `steps` steps."""
    size = batch * steps
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(size, *SHAPES[name])).astype(np.float32), rng.integers(0, 10, size)
    plain = compiled(build(name))
    found = {"plain": lambda: plain.fit(x, y, batch_size=batch, epochs=1, verbose=0)}

    def private(sampling, engine="auto", **options):
        plan = dp.PrivacyPlan(sampling, dp.FullGradientClipping(1.0), 1.0, 10**6)
        model = compiled(dp.PrivateModel(build(name), plan, engine=engine, **options))
        return lambda: model.fit(x, y, epochs=1, verbose=0)

    found["batch clipping"] = private(dp.Shuffling.batch(size, batch))
    for engine in ENGINES[1:]:
        found[f"individual, {engine}"] = private(dp.Shuffling.individual(size, batch), engine)
    return found


def measure(runs: dict, repeats: int, steps: int) -> dict[str, tuple[float, float]]:
    """Variant → (milliseconds a step, ratio to plain), medians over interleaved repeats."""
    for run in runs.values():  # trace, warm up
        run()
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) / steps)
    plain = times["plain"]
    return {
        name: (
            1e3 * statistics.median(values),
            statistics.median(v / p for v, p in zip(values, plain, strict=True)),
        )
        for name, values in times.items()
    }


def machine() -> str:
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            name = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return (
        f"{datetime.date.today()}, {name}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"TensorFlow {tf.__version__}, Keras {keras.__version__}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="tutorial_cnn,mlp,bn_lenet5,convnet")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=8, help="steps timed at once")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--markdown", help="append the table to this file")
    arguments = parser.parse_args()
    lines = [machine(), "", "| model, batch | variant | ms a step | ratio to plain |", "|---|---|---|---|"]
    for name in arguments.models.split(","):
        runs = variants(name, arguments.batch_size, arguments.steps)
        for variant, (milliseconds, ratio) in measure(runs, arguments.repeats, arguments.steps).items():
            lines.append(f"| {name}, {arguments.batch_size} | {variant} | {milliseconds:.1f} | {ratio:.2f} |")
            print(lines[-1], flush=True)
    if arguments.markdown:
        with open(arguments.markdown, "a") as file:
            file.write("\n".join(lines) + "\n\n")


if __name__ == "__main__":
    main()
