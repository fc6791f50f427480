"""Draws that nobody outside this process can foresee: a keyed hash over a counter.

Audits use it to choose replies, pairs and known rows. The key is given from outside: secret in service, fixed in tests.
"""

from __future__ import annotations

import hashlib
import threading

import numpy as np

KEY_BYTES = 32


class SecretDraws:
    """A sequence of draws; the same key always gives the same one. Safe to use from several threads."""

    def __init__(self, key: bytes) -> None:
        """`key` has KEY_BYTES random bytes, as from `secrets.token_bytes`."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"the key has {len(key)} bytes, {KEY_BYTES} are needed")
        self._key = key
        self._lock = threading.Lock()
        self._n_drawn = 0

    def unit(self) -> float:
        """From 0 up to, not including, 1."""
        return (int.from_bytes(self._next()[:8]) >> 11) / 2.0**53

    def generator(self) -> np.random.Generator:
        """A new generator with a seed of 256 bits."""
        return np.random.default_rng(int.from_bytes(self._next()))

    def _next(self) -> bytes:
        with self._lock:
            self._n_drawn += 1
            number = self._n_drawn
        return hashlib.blake2b(number.to_bytes(8), key=self._key, digest_size=32).digest()
