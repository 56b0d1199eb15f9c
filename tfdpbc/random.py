"""Named streams of randomness (`init`, `sampling`, `noise`, ...) drawn from one entropy pool.

The guarantee of a private run needs its randomness to stay secret, so the entropy comes from the operating system unless
a seed is given. A seed makes a run reproducible and is recorded with it; whoever knows the seed can remove the noise, so
the guarantee then holds only against those who do not.
"""

from __future__ import annotations

import os
import secrets
import zlib

import numpy as np

from tfdpbc import _validate

ENTROPY_BITS = 256


class Streams:
    """Independent, named, reproducible streams.

    Args:
      seed: a non-negative integer, or None for 256 bits from the operating system.

    Attributes:
      seed: the seed given by the user, None if the entropy is the operating system's. The entropy itself is never exposed:
        writing it next to a released model would undo the privacy noise.
    """

    def __init__(self, seed: int | None = None):
        self.seed = None if seed is None else _validate.integer("seed", seed, at_least=0)
        self._entropy = secrets.randbits(ENTROPY_BITS) if seed is None else self.seed
        self._process = os.getpid()

    def _sequence(self, name: str, *key: int) -> np.random.SeedSequence:
        if self.seed is None and os.getpid() != self._process:
            # A forked process would draw the noise of its parent again, and their difference would be without noise.
            self._entropy, self._process = secrets.randbits(ENTROPY_BITS), os.getpid()
        # crc32 names the stream in a way that does not depend on Python's per-process string hashing.
        return np.random.SeedSequence(self._entropy, spawn_key=(zlib.crc32(name.encode()), *map(int, key)))

    def generator(self, name: str, *key: int) -> np.random.Generator:
        """A numpy generator for the stream `name` at position `key` (for example ``("sampling", epoch)``)."""
        return np.random.Generator(np.random.PCG64DXSM(self._sequence(name, *key)))

    def key(self, name: str, *key: int) -> np.ndarray:
        """A seed of shape [2], int64, for TensorFlow's stateless (counter-based) operations."""
        return self._sequence(name, *key).generate_state(2, np.uint64).view(np.int64)
