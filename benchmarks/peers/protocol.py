"""What the workers share: sizes and data of the models, and the conversation with `benchmarks/peers.py`.

A worker reads one JSON request a line, {"model", "variant", "pool", "steps"}, and answers with one line: {"ms": milliseconds a
step, "parameters": trainable numbers} or {"unsupported": reason}. What a variant needs (model, data of `pool` batches,
compiled step) is made at its first request and kept. Only numpy and the standard library here: every peer has a Python of its
own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

CLIP, NOISE, RATE = 1.0, 1.0, 0.01  # clipping norm, noise multiplier, learning rate of SGD
VOCABULARY, LENGTH, WIDTH, HEADS, HIDDEN, BLOCKS = 5000, 64, 64, 4, 128, 2  # of the transformer
CONVNET = (32, 64, 64, 128)  # filters
RESNET = (64, 128, 256, 512)  # filters of the stages, two blocks each


class Shape(NamedTuple):
    """Sizes of a model's data; images have the channels last."""

    example: tuple[int, ...]
    classes: int
    batch: int


# The models of benchmarks/step.py, by its names.
SHAPES = {
    "tutorial_cnn": Shape((28, 28, 1), 10, 256),
    "mlp": Shape((28, 28, 1), 10, 256),
    "convnet": Shape((32, 32, 3), 10, 256),
    "convnet_groupnorm": Shape((32, 32, 3), 10, 256),
    "resnet18_groupnorm": Shape((32, 32, 3), 10, 32),
    "transformer": Shape((LENGTH,), 2, 64),
}


class Unsupported(Exception):
    """This peer cannot train this model so; the text says why."""


class Ready(NamedTuple):
    """A variant that is built: `run(steps)` does that many steps, at most those of the pool, and returns how many it did."""

    run: Callable[[int], int]
    parameters: int


def pool(name: str, batches: int) -> tuple[Any, np.ndarray]:
    """(x, y) of `batches` batches: float32 images, or a pair of int32 tokens and positions; int64 labels."""
    rng = np.random.default_rng(0)
    shape = SHAPES[name]
    size = shape.batch * batches
    y = rng.integers(0, shape.classes, size)
    if name == "transformer":
        tokens = rng.integers(0, VOCABULARY, (size, LENGTH), np.int32)
        return (tokens, np.broadcast_to(np.arange(LENGTH, dtype=np.int32), tokens.shape).copy()), y
    return rng.normal(size=(size, *shape.example)).astype(np.float32), y


def orders(name: str, size: int, steps: int) -> Iterator[np.ndarray]:
    """Indices [batch] of each step: a fresh shuffle of `size` examples, cut."""
    batch = SHAPES[name].batch
    order = np.random.default_rng().permutation(size)
    for step in range(steps):
        yield order[step * batch : (step + 1) * batch]


def serve(versions: dict[str, str], make: Callable[[str, str, int], Ready]) -> None:
    """Answers requests until the input ends. The first line out names the versions.

    Args:
      versions: package → version, for the head of the table.
      make: (model, variant, batches of the pool) → `Ready`; raises `Unsupported`.
    """
    # Frameworks print to standard output: answers go to a copy of it, everything else to standard error.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"python": sys.version.split()[0], **versions}), file=answers)
    ready: dict[tuple[str, str], Ready] = {}
    for line in sys.stdin:
        request = json.loads(line)
        key = request["model"], request["variant"]
        try:
            if key not in ready:
                ready[key] = make(*key, request["pool"])
            start = time.perf_counter()
            steps = ready[key].run(request["steps"])
            answer = {"ms": 1e3 * (time.perf_counter() - start) / steps, "parameters": ready[key].parameters}
        except Unsupported as error:
            answer = {"unsupported": str(error)}
        except Exception as error:  # a peer's own failure is a row of the table, not the end of the run
            lines = (str(error).strip() or "no message").splitlines()
            text = next((line for line in lines if "OOM" in line), lines[0])  # TensorFlow begins with a trace
            answer = {"unsupported": f"{type(error).__name__}: {text[:90].strip()}"}
        print(json.dumps(answer), file=answers)
