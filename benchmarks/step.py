"""Step time and memory of private training against plain training of the same model, interleaved in one run.

    python benchmarks/step.py [--models tutorial_cnn,mlp] [--repeats 15] [--markdown FILE] [--memory]
    python benchmarks/step.py --only Poisson --against "Poisson, individual, onepass" --batch-size 1024

Each repeat times some steps of every variant one after the other, so that a slow moment of the machine hits all of them; a
ratio is the median over repeats of (variant / plain), of the time that passed and of the processor's time, which other
programs disturb less. Plain is the barest loop there is: one `tf.function` that gathers
each batch from resident data, computes the mean loss, its gradient and the optimizer's step. The private side is the whole
of `PrivateModel.fit`: drawing, per-example clipping, noise, optimizer, the running loss. `keras fit` is shown beside.
`--memory` runs every variant in a process of its own and prints the growth of its peak resident size from before the model
and the resident copy of the data are made.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tfdpbc as dp
from tfdpbc import models
from tfdpbc.gradients.auto import ENGINES

VOCABULARY, LENGTH = 5000, 64
POISSON = "Poisson, individual, onepass"
EPOCHS = 3
"""Epochs of a timed call: what `fit` does once, before them, is part of it."""


class Subject(NamedTuple):
    """A model to measure: how it is built, the shape of an example, the batch."""

    build: Callable[[], keras.Model]
    shape: tuple[int, ...]
    batch: int = 256


def transformer() -> keras.Model:
    """Two blocks (4 heads of 16, feed-forward 128) over tokens and positions, mean, 2 classes."""
    layers = keras.layers
    tokens, positions = keras.Input([LENGTH], dtype="int32"), keras.Input([LENGTH], dtype="int32")
    x = layers.Embedding(VOCABULARY, 64)(tokens) + layers.Embedding(LENGTH, 64)(positions)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 16)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(64)(layers.Dense(128, activation="gelu")(x)))
    return keras.Model([tokens, positions], layers.Dense(2)(layers.GlobalAveragePooling1D()(x)))


def image(name: str, shape: tuple[int, ...], batch: int = 256, **options: Any) -> Subject:
    return Subject(lambda: models.build(name, shape, 10, **options), shape, batch)


SUBJECTS = {
    "tutorial_cnn": image("tutorial_cnn", (28, 28, 1)),
    "mlp": image("mlp", (28, 28, 1)),
    "convnet": image("convnet", (32, 32, 3)),
    "convnet_groupnorm": image("convnet", (32, 32, 3), normalization="group"),
    "resnet18_groupnorm": image("resnet18", (32, 32, 3), batch=32),
    "transformer": Subject(transformer, (LENGTH,), 64),
}


def examples(subject: Subject, size: int) -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(0)
    if len(subject.shape) == 1:
        tokens = rng.integers(0, VOCABULARY, (size, *subject.shape), np.int32)
        return (tokens, np.broadcast_to(np.arange(LENGTH, dtype=np.int32), tokens.shape)), rng.integers(0, 2, size)
    return rng.normal(size=(size, *subject.shape)).astype(np.float32), rng.integers(0, 10, size)


def compiled(model: keras.Model, steps: int) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False, steps_per_execution=steps)
    return model


def bare(model: keras.Model, x: Any, y: Any, batch: int, steps: int) -> Callable[[], Any]:
    """Plain training without any loop of Keras's."""
    pool = tf.nest.map_structure(lambda t: tf.Variable(t, trainable=False), (x, y))
    optimizer, loss = keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)

    @tf.function
    def run() -> Any:
        order = tf.reshape(tf.random.shuffle(tf.range(batch * steps)), [steps, batch])
        total = tf.constant(0.0)
        for step in tf.range(steps):
            now = order[step]
            xs, ys = tf.nest.map_structure(functools.partial(tf.gather, indices=now), pool)
            with tf.GradientTape() as tape:
                value = loss(ys, model(xs, training=True))
            optimizer.apply(tape.gradient(value, [v.value for v in model.trainable_variables]))
            total += value
        return total

    return lambda: [run().numpy() for _ in range(EPOCHS)]


def variants(name: str, batch: int | None, steps: int) -> dict[str, Callable[[], Callable[[], Any]]]:
    """Variant → what makes the function that runs `steps` steps."""
    subject = SUBJECTS[name]
    batch = batch or subject.batch
    size = batch * steps
    x, y = examples(subject, size)

    def fit() -> Callable[[], Any]:
        model = compiled(subject.build(), steps)
        return lambda: model.fit(x, y, batch_size=batch, epochs=EPOCHS, verbose=0)

    def private(
        sampling: Any, engine: str = "auto", noise: float = 1.0, aggregation: Any = None, **options: Any
    ) -> Callable[[], Callable[[], Any]]:
        def make() -> Callable[[], Any]:
            plan = dp.PrivacyPlan(sampling, dp.FullGradientClipping(1.0), noise, 10**6, aggregation or dp.Sum())
            model = compiled(dp.PrivateModel(subject.build(), plan, engine=engine, **options), steps)
            return lambda: model.fit(x, y, epochs=EPOCHS, verbose=0)

        return make

    individual = dp.Shuffling.individual(size, batch)
    poisson = dp.Poisson.individual(size, batch)
    # A third is left out, and every test passes: where rounds are computed in part again, that is the dearer outcome.
    trimmed = dp.TrimmedSum(batch // 3, 1.0, 3.0, -1e9)
    whole = poisson.shape[0]
    return {
        "plain": lambda: bare(subject.build(), x, y, batch, steps),
        "plain, keras fit": fit,
        "batch clipping, no noise": private(dp.Shuffling.batch(size, batch), noise=0.0),
        "batch clipping": private(dp.Shuffling.batch(size, batch)),
        "individual, onepass, no noise": private(individual, "onepass", 0.0),
        **{f"individual, {engine}": private(individual, engine) for engine in ENGINES[1:]},
        POISSON: private(poisson, "onepass"),
        "Poisson, trimmed": private(poisson, "onepass", aggregation=trimmed),
        "Poisson, trimmed (one pass)": private(poisson, "onepass", aggregation=trimmed, physical_batch_size=whole),
    }


def measure(
    runs: dict[str, Callable[[], Any]], repeats: int, steps: int, against: str = "plain"
) -> dict[str, tuple[float, ...]]:
    """Variant → (milliseconds a step, ratio to `against`, ratio of the processor's time), medians over interleaved repeats."""
    for run in runs.values():  # trace, warm up
        run()
    clocks = time.perf_counter, time.process_time
    times: dict[str, np.ndarray] = {name: np.empty([repeats, len(clocks)]) for name in runs}
    for repeat in range(repeats):
        for name, run in runs.items():
            start = [clock() for clock in clocks]
            run()
            times[name][repeat] = [clock() - begun for clock, begun in zip(clocks, start, strict=True)]
    return {
        name: (
            1e3 / (EPOCHS * steps) * float(np.median(values[:, 0])),
            *map(float, np.median(values / times[against], axis=0)),
        )
        for name, values in times.items()
    }


def peak(make: Callable[[], Callable[[], Any]]) -> float:
    """Growth of this process's peak resident size from before the variant is made, in MiB.

    Model and resident data count on both sides: the plain loop copies its data when it is made, `fit` when it runs.
    """
    tf.matmul(tf.ones([64, 64]), tf.ones([64, 64]))  # what TensorFlow sets up at the first operation is no variant's
    with open("/proc/self/statm") as file:
        before = int(file.read().split()[1]) * resource.getpagesize()
    run = make()
    for _ in range(3):
        run()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / 2**20


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
    parser.add_argument("--models", default=",".join(SUBJECTS))
    parser.add_argument("--batch-size", type=int, help="instead of the model's own")
    parser.add_argument("--steps", type=int, default=8, help="steps timed at once")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", default="", help="variants whose name holds one of these, beside plain (commas)")
    parser.add_argument("--against", default="plain", help="the variant that ratios of time are to")
    parser.add_argument("--markdown", help="append the table to this file")
    parser.add_argument("--memory", action="store_true", help="peak memory instead of time")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    ratio = f"ratio to {options.against}"
    columns = ["peak MiB", "ratio to plain"] if options.memory else ["ms a step", ratio, "of processor time"]
    lines = [
        machine(),
        "",
        f"| model, batch | variant | {' | '.join(columns)} |",
        "|---|---" + "|---" * len(columns) + "|",
    ]
    for name in options.models.split(","):
        makers = variants(name, options.batch_size, options.steps)
        if options.one:
            print(json.dumps(peak(makers[options.one])))
            return
        wanted = [
            v for v in makers if v in ("plain", options.against) or any(part in v for part in options.only.split(","))
        ]
        if options.memory:
            found = memory(name, wanted)
        else:
            found = measure({v: makers[v]() for v in wanted}, options.repeats, options.steps, options.against)
        for variant, (value, *ratios) in found.items():
            batch = options.batch_size or SUBJECTS[name].batch
            shown = " | ".join([f"{value:.1f}", *(f"{ratio:.2f}" for ratio in ratios)])
            lines.append(f"| {name}, {batch} | {variant} | {shown} |")
            print(lines[-1], flush=True)
    if options.markdown:
        with open(options.markdown, "a") as file:
            file.write("\n".join(lines) + "\n\n")


def memory(name: str, wanted: list[str]) -> dict[str, tuple[float, float]]:
    """Variant → (peak MiB, ratio to plain), each in a process of its own with this one's options."""
    found = {}
    for variant in wanted:
        command = [sys.executable, __file__, *sys.argv[1:], "--models", name, "--one", variant]
        found[variant] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {variant: (value, value / found["plain"]) for variant, value in found.items()}


if __name__ == "__main__":
    main()
