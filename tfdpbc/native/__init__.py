"""Operations in C++ for CPUs, where they were built (see `build`): gradients of convolutions, Gaussian noise,
sums of squares.

Without them everything works, by TensorFlow's own operations: the same numbers, slower.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_local = threading.local()


def library() -> pathlib.Path:
    """Where the operations for this TensorFlow lie once they are built."""
    return pathlib.Path(__file__).with_name(f"_native_tf{tf.__version__}.so")


@functools.cache
def _loaded() -> Any:
    if not library().exists() or tf.config.list_physical_devices("GPU"):
        return None  # beside a GPU their inputs and outputs would have to cross over
    return tf.load_op_library(str(library()))


def operations() -> Any:
    """The module of the operations, or None where there is none, where it is off, or where TFDPBC_NATIVE=0 says so."""
    if getattr(_local, "off", False) or os.environ.get("TFDPBC_NATIVE") == "0":
        return None
    return _loaded()


def row_squares(t: Any) -> tf.Tensor:
    """Sums of squares over all axes but the first, of a float32 tensor ``[n, ...]``: ``[n]``."""
    built = operations()  # no walrus: AutoGraph cannot read it
    if built is not None:
        return built.tfdpbc_row_squares([t])
    return tf.reduce_sum(tf.square(tf.reshape(t, [t.shape[0], -1])), axis=1)


@contextlib.contextmanager
def off() -> Iterator[None]:
    """On this thread, TensorFlow's own operations alone: XLA cannot compile others."""
    before, _local.off = getattr(_local, "off", False), True
    try:
        yield
    finally:
        _local.off = before
