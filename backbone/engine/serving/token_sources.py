"""Where a sequence's last tokens were computed: which node served which of a token's pairs, layer by layer.

`shares` makes the sources of a step's tokens, a job keeps the last of them, and the process that records the job counts
them when it has ended. A step costs a few array operations, for any batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from backbone.engine.dispatch.counters import Served

MOST_SOURCES = 1 << 16  # numbers in a table are u16


class Source(NamedTuple):
    """A layer and the worker that served in it; None for the backbone itself, as a hot expert or a fallback."""

    layer: int
    worker_id: str | None
    is_hot: bool = False


class SourceTable:
    """Numbers for sources. A table only grows; when it is full its owner begins another."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self._numbers: dict[Source, int] = {}

    def has_room(self, n_more: int) -> bool:
        """Return whether `n_more` new sources fit."""
        return len(self.sources) + n_more <= MOST_SOURCES

    def number(self, source: Source) -> int:
        """Return the source's number; a new source gets the next one."""
        number = self._numbers.setdefault(source, len(self.sources))
        if number == len(self.sources):
            self.sources.append(source)
        return number


@dataclass(frozen=True, slots=True, eq=False)
class TokenSources:
    """The source numbers of one token's pairs."""

    table: SourceTable
    pair_sources: NDArray[np.uint16]  # [n_pairs]


@dataclass(frozen=True, slots=True, eq=False)
class TokenTrace:
    """The last tokens of one answer, in order; `first_token` is the position of the first of them in it, from 0."""

    first_token: int = 0
    tokens: tuple[TokenSources, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class SourceCounts:
    """How many row-experts of each token of a trace each source computed; sources without any are left out."""

    sources: tuple[Source, ...]
    counts: NDArray[np.int64]  # [n_tokens, n_sources]


class LastTokens:
    """Keeps the sources of the last `n_tokens` tokens of one answer, all numbered by the latest token's table.

    The table changes when a sequence moves to another group, or when a table is full.
    """

    def __init__(self, n_tokens: int) -> None:
        self._kept: deque[TokenSources] = deque(maxlen=n_tokens)
        self._n_seen = 0

    def add(self, token: TokenSources) -> None:
        """Add the next token's sources."""
        if self._kept and self._kept[-1].table is not token.table:
            self._renumber(self._kept[-1].table, token.table)
        self._kept.append(token)
        self._n_seen += 1

    def _renumber(self, old: SourceTable, new: SourceTable) -> None:
        """Number the kept tokens by another table; they are dropped if it has no room."""
        kept = list(self._kept)
        self._kept.clear()
        used = np.unique(np.concatenate([token.pair_sources for token in kept])).tolist()
        if new.has_room(len(used)):
            numbers = np.zeros(len(old.sources), np.uint16)
            numbers[used] = [new.number(old.sources[number]) for number in used]
            self._kept.extend(TokenSources(new, numbers[token.pair_sources]) for token in kept)

    def trace(self) -> TokenTrace:
        """Return the kept tokens."""
        return TokenTrace(self._n_seen - len(self._kept), tuple(self._kept))


def sources_of_rows(table: SourceTable, served: Sequence[Served], rows: NDArray[np.int64]) -> list[TokenSources]:
    """Return the sources of some rows of a step, given in ascending order, from all that was served in the step."""
    numbers = np.array([table.number(Source(one.layer, one.worker_id, one.is_hot)) for one in served], np.uint16)
    pair_sources = np.repeat(numbers, [len(one.pair_rows) for one in served])
    pair_rows: NDArray[Any] = np.concatenate([one.pair_rows for one in served]) if served else np.zeros(0, np.int32)
    if len(rows) <= int(rows[-1]):  # most rows of a prompt are not asked for: drop their pairs first
        is_wanted = np.isin(pair_rows, rows)
        pair_rows, pair_sources = pair_rows[is_wanted], pair_sources[is_wanted]
    if pair_rows.max(initial=0) < 1 << 16:
        pair_rows = pair_rows.astype(np.uint16)  # these are sorted without comparing
    in_order = np.argsort(pair_rows, kind="stable")
    starts = np.searchsorted(pair_rows[in_order], np.append(rows, rows[-1] + 1)).tolist()
    ordered = pair_sources[in_order]
    return [TokenSources(table, ordered[start:stop]) for start, stop in pairwise(starts)]


def count_sources(trace: TokenTrace) -> SourceCounts:
    """Count a trace with at least one token."""
    pairs = [token.pair_sources for token in trace.tokens]
    used, pair_numbers = np.unique(np.concatenate(pairs), return_inverse=True)
    pair_tokens = np.repeat(np.arange(len(pairs)), [len(part) for part in pairs])
    flat = np.bincount(pair_tokens * len(used) + pair_numbers, minlength=len(pairs) * len(used))
    sources = trace.tokens[0].table.sources
    return SourceCounts(tuple(sources[number] for number in used.tolist()), flat.reshape(len(pairs), len(used)))
