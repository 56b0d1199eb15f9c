"""`tfdpbc`: the commands under one name."""

from __future__ import annotations

import click

import tfdpbc
from tfdpbc.cli.account import account
from tfdpbc.cli.base import SETTINGS
from tfdpbc.cli.calibrate import calibrate
from tfdpbc.cli.compare import compare
from tfdpbc.cli.evaluate import evaluate
from tfdpbc.cli.federate import federate
from tfdpbc.cli.reproduce import reproduce
from tfdpbc.cli.train import train


@click.group(context_settings=SETTINGS)
@click.version_option(tfdpbc.__version__, prog_name="tfdpbc")
def app() -> None:
    """Differentially private training for Keras, under a guarantee that is computed exactly."""


for command in (train, evaluate, account, calibrate, compare, reproduce, federate):
    app.add_command(command)
