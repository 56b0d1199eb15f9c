"""A client that joins a server on another machine."""

import pytest

from tfdpbc.errors import FederatedError
from tfdpbc.federated import hosting


def test_another_machine_must_be_trusted(tmp_path):
    """Its super-link may run code here, so nothing is even read before the user says so."""
    with pytest.raises(FederatedError, match="--trust-server"):
        hosting.join(tmp_path / "none.json", "fed.example.org:9092", None, None, False, print)
