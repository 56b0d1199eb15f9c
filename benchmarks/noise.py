"""Gaussian noise by several generators, nanoseconds a number: `python benchmarks/noise.py`.

Interleaved in one run, medians. Each draws float32 noise for all variables of a model as one tensor or one a variable.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from tfdpbc import models, native, noise


def candidates(shapes: list[Any]) -> dict[str, Callable[[Any], Any]]:
    """Name → function of an int64 key."""
    size = sum(math.prod(shape) for shape in shapes)
    generator = np.random.default_rng(0)

    def ours(key: Any) -> Any:
        return noise.add_gaussian([tf.zeros(s) for s in shapes], [1.0] * len(shapes), key)

    def without_native(key: Any) -> Any:
        with native.off():
            return ours(key)

    def each(key: Any) -> Any:
        return [tf.random.stateless_normal(s, key + i, alg="philox") for i, s in enumerate(shapes)]

    def host(key: Any) -> Any:
        return tf.numpy_function(lambda: generator.standard_normal(size, np.float32), [], tf.float32)

    return {
        "tfdpbc.noise, C++": ours,
        "tfdpbc.noise, TensorFlow operations": without_native,
        "stateless, Philox, one draw": lambda key: tf.random.stateless_normal([size], key, alg="philox"),
        "stateless, Philox, a draw a variable": each,
        "stateful tf.random.normal": lambda key: tf.random.normal([size]),
        "numpy on the host (no GPU, no replay)": host,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=21)
    repeats = parser.parse_args().repeats
    subjects = {
        "tutorial_cnn": models.tutorial_cnn((28, 28, 1), 10),
        "mlp": models.mlp((28, 28, 1), 10),
        "resnet18": models.resnet18((32, 32, 3), 10),
    }
    print("| model (numbers) | generator | ms | ns a number |\n|---|---|---|---|")
    for name, model in subjects.items():
        shapes = [v.shape for v in model.trainable_variables]
        size = sum(math.prod(shape) for shape in shapes)
        runs = {k: tf.function(v) for k, v in candidates(shapes).items()}
        times: dict[str, list[float]] = {k: [] for k in runs}
        for repeat in range(-2, repeats):
            for k, run in runs.items():
                key = tf.constant([repeat, 1], tf.int64)
                begun = time.perf_counter()
                tf.nest.map_structure(lambda t: t.numpy(), run(key))
                if repeat >= 0:
                    times[k].append(time.perf_counter() - begun)
        for k, values in times.items():
            seconds = statistics.median(values)
            print(f"| {name} ({size}) | {k} | {1e3 * seconds:.2f} | {1e9 * seconds / size:.2f} |", flush=True)


if __name__ == "__main__":
    main()
