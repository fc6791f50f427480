"""A sample of the last layer calls: how often they called each expert, and which experts a row called together.

The dispatcher's `HotCache` feeds it; `hot_plan` and `co_activation` read it. Adding a call takes microseconds and
keeps no reference to its tensors.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

Calls = npt.NDArray[np.uint16]  # [n_calls, n_expert] pairs of each call
Together = npt.NDArray[np.uint32]  # [n_expert, n_expert] rows that called both; the diagonal: rows that called one

MOST_ROWS = 8


class CallSamples:
    """A ring of sampled calls for each layer. Safe to use from several threads."""

    def __init__(
        self, n_layer: int, n_expert: int, *, n_kept: int = 256, every: int = 4, most_rows: int = MOST_ROWS
    ) -> None:
        """Sample every `every`-th call of each layer, and keep the last `n_kept` samples.

        Experts that are called together are counted for the first `most_rows` rows of a sample.
        """
        self._lock = threading.Lock()
        self._every = every
        self._most_rows = most_rows
        self._calls = np.zeros((n_layer, n_kept, n_expert), np.uint16)
        self._together = np.zeros((n_layer, n_expert, n_expert), np.uint32)
        self._n_seen = [0] * n_layer

    @property
    def n_layer(self) -> int:
        """Number of layers, including those without experts."""
        return len(self._n_seen)

    def add(self, layer: int, expert_ids: npt.NDArray[np.int32]) -> None:
        """Add a call of a layer, given the experts [T, n_used] of its rows."""
        seen = self._n_seen[layer]
        self._n_seen[layer] = seen + 1
        if seen % self._every:
            return
        n_kept, n_expert = self._calls.shape[1:]
        counts = np.bincount(expert_ids.reshape(-1), minlength=n_expert)
        first = expert_ids[: self._most_rows]
        pairs = (first[:, :, None] * n_expert + first[:, None, :]).reshape(-1)  # [rows * n_used * n_used]
        with self._lock:
            self._calls[layer, seen // self._every % n_kept] = np.minimum(counts, 0xFFFF)
            np.add.at(self._together[layer].reshape(-1), pairs, 1)

    def calls(self, layer: int) -> Calls:
        """Return the layer's sampled calls, in no particular order."""
        with self._lock:
            n_sampled = -(-self._n_seen[layer] // self._every)
            calls: Calls = self._calls[layer, :n_sampled].copy()
        return calls

    def together(self, layer: int) -> Together:
        """Return how many sampled rows have called each two experts of a layer since the start."""
        with self._lock:
            together: Together = self._together[layer].copy()
        return together
