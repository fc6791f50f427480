"""Who computed a sequence's row-experts, counted exactly by the rows that were its own in each step.

The service keeps one meter for each group of sequences: the engine tells it a step's rows, the dispatcher who served
which of them. Counting never changes what is computed, and waits until the step is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backbone.engine.dispatch.dispatcher import Served
from backbone.engine.drafts.drafter import DraftCounts
from backbone.engine.serving.scheduler import Chunk
from backbone.engine.serving.sequence import Sequence
from backbone.engine.serving.token_sources import SourceTable, TokenSources, sources_of_rows

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shares:
    """Row-experts by who computed them."""

    workers: int = 0
    hot: int = 0  # experts that the backbone computes itself by its plan
    fallback: int = 0  # the backbone's own replica, where no worker could be used

    @property
    def total(self) -> int:
        """All row-experts."""
        return self.workers + self.hot + self.fallback

    def __add__(self, other: Shares) -> Shares:
        return Shares(self.workers + other.workers, self.hot + other.hot, self.fallback + other.fallback)


class Computed(NamedTuple):
    """What a step computed of one sequence: rows of rejected drafts count as work, and chose no token.

    `tokens` are the sources of the rows that chose tokens, where these are to be traced.
    """

    sequence: Sequence
    shares: Shares
    tokens: tuple[TokenSources, ...]
    drafts: DraftCounts


class ShareMeter:
    """The rows of the step in flight, and who served which of their pairs."""

    def __init__(self, *, is_tracing: bool = True) -> None:
        """`is_tracing`: say of each new token where it was computed."""
        self._is_tracing = is_tracing
        self._chunks: tuple[Chunk, ...] = ()
        self._served: list[Served] = []
        self._table = SourceTable()

    def begin(self, chunks: tuple[Chunk, ...]) -> None:
        """A step over these rows begins."""
        self._chunks = chunks
        self._served = []

    def add(self, served: Served) -> None:
        """Take note of a group of pairs of the step in flight."""
        self._served.append(served)

    def end(self, n_tokens: Mapping[Sequence, int]) -> Iterator[Computed]:
        """The step is over and chose so many tokens for each sequence: what each of its sequences had."""
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
    """The rows whose logits chose tokens: a chunk's last one, or the first of it and its drafts."""
    first = last_rows - np.array([len(chunk.drafts) for chunk in chunks], np.int64)
    counts = np.array(chosen, np.int64)
    n_before = np.cumsum(counts) - counts
    rows: IntArray = np.repeat(first - n_before, counts) + np.arange(counts.sum(), dtype=np.int64)
    return rows


def _sums(served: list[Served], last_rows: IntArray) -> list[list[int]]:
    """Pairs by workers, hot, and by the own replica otherwise, of consecutive rows up to each last one, all at once.

    There is a chunk for every token and a group for every layer and worker, so nothing is counted one by one.
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
