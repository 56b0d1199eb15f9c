"""The command line. Importing it is light: a command imports TensorFlow when it runs, `--help` never does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any


def main(args: Sequence[str] | None = None, command: str | None = None, **settings: Any) -> Any:
    """Entry point of `tfdpbc`, and of `scripts/`, each of which is one `command` of it.

    Exit status: 0; 1 with one line on stderr for a failure the user can mend; 2 for a mistake in the usage.
    """
    os.environ["KERAS_BACKEND"] = "tensorflow"  # Keras reads it when it is imported
    from tfdpbc.cli.app import app

    chosen = app if command is None else app.commands[command]
    return chosen.main(args=args, **{"prog_name": "tfdpbc"} | settings if command is None else settings)
