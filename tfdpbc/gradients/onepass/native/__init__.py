"""An operation in C++ for the gradients of convolutions on a CPU, where it was built: see `build`.

Without it everything works, by TensorFlow's own operations (the same numbers, about half as fast where it matters).
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
    """Where the operation for this TensorFlow lies once it is built."""
    return pathlib.Path(__file__).with_name(f"_conv_tf{tf.__version__}.so")


@functools.cache
def _loaded() -> Any:
    if not library().exists() or tf.config.list_physical_devices("GPU"):
        return None  # beside a GPU its inputs and outputs would have to cross over
    return tf.load_op_library(str(library())).tfdpbc_conv_gradients


def operation() -> Any:
    """The operation, or None where there is none, where it is switched off, or where TFDPBC_NATIVE=0 says so."""
    if getattr(_local, "off", False) or os.environ.get("TFDPBC_NATIVE") == "0":
        return None
    return _loaded()


@contextlib.contextmanager
def off() -> Iterator[None]:
    """On this thread, TensorFlow's own operations alone: XLA cannot compile others."""
    before, _local.off = getattr(_local, "off", False), True
    try:
        yield
    finally:
        _local.off = before
