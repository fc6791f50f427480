"""Which nodes computed a sequence's row-experts, counted exactly from the sequence's own rows in each step.

The service keeps one meter for each group of sequences: the engine reports a step's rows, the dispatcher what served
them. Counting happens after the step and never changes what is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backbone.engine.dispatch.counters import Served
from backbone.engine.drafts.drafter import DraftCounts
from backbone.engine.serving.scheduler import Chunk
from backbone.engine.serving.sequence import Sequence
from backbone.engine.serving.token_sources import SourceTable, TokenSources, sources_of_rows

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shares:
    """Row-experts by where they were computed."""

    workers: int = 0
    hot: int = 0  # by the backbone, because its plan has their experts
    fallback: int = 0  # by the backbone, because no worker could be used

    @property
    def total(self) -> int:
        """All row-experts."""
        return self.workers + self.hot + self.fallback

    def __add__(self, other: Shares) -> Shares:
        return Shares(self.workers + other.workers, self.hot + other.hot, self.fallback + other.fallback)


class Computed(NamedTuple):
    """What a step computed for one sequence; rows of rejected drafts count too.

    `tokens` are the sources of the rows that chose tokens, if the meter traces them.
    """

    sequence: Sequence
    shares: Shares
    tokens: tuple[TokenSources, ...]
    drafts: DraftCounts


class ShareMeter:
    """The rows of the step in flight, and what served their pairs."""

    def __init__(self, *, is_tracing: bool = True) -> None:
        """With `is_tracing` the sources of each new token are given too."""
        self._is_tracing = is_tracing
        self._chunks: tuple[Chunk, ...] = ()
        self._served: list[Served] = []
        self._table = SourceTable()

    def begin(self, chunks: tuple[Chunk, ...]) -> None:
        """Begin a step over these rows."""
        self._chunks = chunks
        self._served = []

    def add(self, served: Served) -> None:
        """Note a group of pairs of the step in flight."""
        self._served.append(served)

    def end(self, n_tokens: Mapping[Sequence, int]) -> Iterator[Computed]:
        """End the step, which chose `n_tokens` for each sequence. Yields what it computed for each chunk."""
        chunks, self._chunks = self._chunks, ()
        served, self._served = self._served, []
        last_rows = np.cumsum([chunk.n_rows for chunk in chunks], dtype=np.int64) - 1
        workers, hot, fallback = _sums(served, last_rows)
        chosen = [n_tokens.get(chunk.sequence, 0) for chunk in chunks]
        tokens = iter(self._sources(served, _choosing_rows(chunks, last_rows, chosen)) if self._is_tracing else ())
        for number, (chunk, n_chosen) in enumerate(zip(chunks, chosen, strict=True)):
            shares = Shares(workers[number], hot[number], fallback[number])
            drafts = DraftCounts(len(chunk.drafts), min(max(n_chosen - 1, 0), len(chunk.drafts)))
            yield Computed(chunk.sequence, shares, tuple(islice(tokens, n_chosen)), drafts)

    def _sources(self, served: list[Served], rows: IntArray) -> list[TokenSources]:
        if not len(rows):
            return []
        if not self._table.has_room(len(served)):
            self._table = SourceTable()
        return sources_of_rows(self._table, served, rows)


def _choosing_rows(chunks: tuple[Chunk, ...], last_rows: IntArray, chosen: list[int]) -> IntArray:
    """Return the rows whose logits chose tokens: a chunk's last own row, and those of its accepted drafts."""
    first = last_rows - np.array([len(chunk.drafts) for chunk in chunks], np.int64)
    counts = np.array(chosen, np.int64)
    n_before = np.cumsum(counts) - counts
    rows: IntArray = np.repeat(first - n_before, counts) + np.arange(counts.sum(), dtype=np.int64)
    return rows


def _sums(served: list[Served], last_rows: IntArray) -> list[list[int]]:
    """Return the pairs of each chunk by workers, hot and fallback; a chunk ends at its number in `last_rows`.

    All chunks are counted at once: a step may have a chunk for every token and a group for every layer and worker.
    """
    n_rows = int(last_rows[-1]) + 1 if len(last_rows) else 0
    by_kind: list[list[NDArray[np.int32]]] = [[], [], []]
    for one in served:
        by_kind[0 if one.worker_id is not None else 1 if one.is_hot else 2].append(one.pair_rows)
    sums = []
    for parts in by_kind:
        counts = np.bincount(np.concatenate(parts) if parts else np.zeros(0, np.int32), minlength=n_rows)
        sums.append([int(n) for n in np.diff(np.cumsum(counts)[last_rows], prepend=0)])
    return sums
