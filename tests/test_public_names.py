"""Every public name can be reached from the package itself, and asking for a light one loads no heavy library."""

import importlib
import subprocess
import sys

import pytest

import tfdpbc


@pytest.mark.parametrize("name", [name for name in tfdpbc.__all__ if name != "__version__"])
def test_public_name_is_reachable_and_documented(name):
    value = getattr(tfdpbc, name)
    assert value.__doc__, f"{name} has no docstring"
    assert name in dir(tfdpbc)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Shuffing'"):
        tfdpbc.Shuffing  # noqa: B018


def test_version_is_the_one_of_the_metadata():
    metadata = importlib.import_module("importlib.metadata")
    assert metadata.version("tfdpbc") == tfdpbc.__version__


HEAVY = ("tensorflow", "keras", "tf_keras", "tensorflow_probability", "tensorflow_datasets", "matplotlib")


@pytest.mark.parametrize(
    "statement",
    [
        "import tfdpbc",
        "import tfdpbc.accounting",
        "from tfdpbc import Shuffling, TradeOff, Gaussian, GaussianMixture",
        "import tfdpbc.errors",
        "import tfdpbc.cli",
        "from tfdpbc.cli import main; main(['--help'], standalone_mode=False)",
        "from tfdpbc.cli import main; main(['train', '-h'], standalone_mode=False)",
        "from tfdpbc.cli import main; main(['account', '--help'], standalone_mode=False)",
        "from tfdpbc.cli import main; main(['reproduce', '--list'], standalone_mode=False)",
    ],
)
def test_stays_light(statement):
    check = f"{statement}\nimport sys\nfound = sorted(set({HEAVY!r}) & set(sys.modules))\nassert not found, found"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
