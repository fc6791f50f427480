"""Who computed a sequence's row-experts, counted exactly by the rows that were its own in each step.

The service keeps one meter for each group of sequences: the engine tells it a step's rows, the dispatcher who served
which of them. Counting never changes what is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbone.engine.dispatch import Served
from backbone.engine.scheduler import Chunk
from backbone.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Shares:
    """Row-experts by who computed them."""

    workers: int = 0
    hot: int = 0  # copies of busy experts on the backbone, once there are any
    fallback: int = 0  # the backbone's own replica, where no worker could be used

    @property
    def total(self) -> int:
        """All row-experts."""
        return self.workers + self.hot + self.fallback

    def __add__(self, other: Shares) -> Shares:
        return Shares(self.workers + other.workers, self.hot + other.hot, self.fallback + other.fallback)


class ShareMeter:
    """The rows of the step in flight, and how many pairs of each were computed where."""

    def __init__(self) -> None:
        self._chunks: tuple[Chunk, ...] = ()
        self._by_workers: NDArray[np.int64] = np.zeros(0, np.int64)  # [T]
        self._by_fallback: NDArray[np.int64] = np.zeros(0, np.int64)  # [T]

    def begin(self, chunks: tuple[Chunk, ...]) -> None:
        """A step over these rows begins."""
        self._chunks = chunks
        n_rows = sum(chunk.n_rows for chunk in chunks)
        self._by_workers = np.zeros(n_rows, np.int64)
        self._by_fallback = np.zeros(n_rows, np.int64)

    def add(self, served: Served) -> None:
        """Count a group of pairs of the step in flight."""
        counts: Any = self._by_fallback if served.worker_id is None else self._by_workers
        counts += np.bincount(served.pair_rows, minlength=len(counts))

    def end(self) -> Iterator[tuple[Sequence, Shares]]:
        """The step is over: what each of its sequences had."""
        chunks, self._chunks = self._chunks, ()
        last_rows = np.cumsum([chunk.n_rows for chunk in chunks], dtype=np.int64) - 1
        workers, fallback = _sums(self._by_workers, last_rows), _sums(self._by_fallback, last_rows)
        for number, chunk in enumerate(chunks):
            yield chunk.sequence, Shares(workers=workers[number], fallback=fallback[number])


def _sums(counts: NDArray[np.int64], last_rows: NDArray[np.int64]) -> list[int]:
    """Sums over consecutive rows, each up to its last one: for all at once, as there is a chunk for every token."""
    return [int(n) for n in np.diff(np.cumsum(counts)[last_rows], prepend=0)]
