"""Loads TensorFlow without the lines it writes to stderr while it is loaded."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
import tempfile
from typing import BinaryIO

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def load_tensorflow() -> None:
    """Imports TensorFlow; its greetings are dropped unless the import fails or the user has set a log level.

    Some releases write them whatever TF_CPP_MIN_LOG_LEVEL says, from C++ straight to file descriptor 2, where they
    would stand between a command and its one line of failure.
    """
    if "tensorflow" in sys.modules or LOG_LEVEL in os.environ:
        importlib.import_module("tensorflow")
        return
    os.environ[LOG_LEVEL] = "3"
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as greetings, contextlib.ExitStack() as at_failure:
        at_failure.callback(_copy, greetings)
        os.dup2(greetings.fileno(), 2)
        try:
            importlib.import_module("tensorflow")
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        at_failure.pop_all()


def _copy(greetings: BinaryIO) -> None:
    greetings.seek(0)
    with os.fdopen(os.dup(2), "wb") as stderr:
        shutil.copyfileobj(greetings, stderr)
