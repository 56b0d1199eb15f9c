"""What the commands share: how they fail, and how they say things."""

from __future__ import annotations

import os
from typing import Any

import click

from tfdpbc.errors import TfdpbcError

SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 120}
TRACEBACK = "TFDPBC_TRACEBACK"


class Command(click.Command):
    """A command whose mendable failures are one line on stderr and exit status 1.

    Mendable: the library's own errors, refused arguments (ValueError, TypeError) and the file system (OSError). Setting
    the environment variable TFDPBC_TRACEBACK shows where they come from.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{"context_settings": SETTINGS} | kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (TfdpbcError, ValueError, TypeError, OSError) as error:
            if os.environ.get(TRACEBACK):
                raise
            raise click.ClickException(" ".join(str(error).split()) or type(error).__name__) from error


def warn(message: str) -> None:
    """A caution on stderr, where it disturbs no answer."""
    click.echo(f"Warning: {message}", err=True)
