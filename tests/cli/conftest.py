"""Runs commands in this process: TensorFlow is loaded once for all tests."""

import json

import pytest
from click.testing import CliRunner

from tfdpbc.cli.app import app


@pytest.fixture(scope="session")
def run():
    """run("account", "--json", ...) -> the click Result (exit_code, stdout, stderr)."""

    def run(*args):
        return CliRunner().invoke(app, [str(arg) for arg in args], prog_name="tfdpbc")

    return run


@pytest.fixture(scope="session")
def answer(run):
    """As `run`, for a call that must succeed with one JSON object on stdout."""

    def answer(*args):
        result = run(*args, "--json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    return answer


@pytest.fixture
def refused(run):
    """As `run`, for a call that must fail with status 1, one line on stderr and nothing on stdout; returns the line."""

    def refused(*args):
        result = run(*args)
        assert result.exit_code == 1, (result.exit_code, result.output, result.exception)
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith("Error: ")
        return line

    return refused
