"""What to say where Flower is not installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tfdpbc.errors import FederatedError


@contextlib.contextmanager
def explain() -> Iterator[None]:
    """Around imports of Flower.

    Raises:
      FederatedError: it is missing; the message says what to install.
    """
    try:
        yield
    except ImportError as error:
        raise FederatedError(
            f"Flower is missing or of another version ({error}): pip install 'tfdpbc[federated]'"
        ) from error
