"""An agent's downloads: one piece at a time, with a verdict on each failure.

`agent` starts a fetch and continues its heartbeats meanwhile. Slices that are held stay locked in the cache until they
are released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from kvasir.errors import DownloadError
from kvasir.experts import ExpertRange
from kvasir.worker.agent.plan_state import Piece
from kvasir.worker.slices.cache import CacheFullError
from kvasir.worker.slices.download import Progress
from kvasir.worker.slices.http import SourceRefusedError
from kvasir.worker.slices.paths import DiskFullError
from kvasir.worker.slices.store import DoesNotFitError, HeldSlice, SliceOffer

ROUNDS_MOST = 3  # fetches of a piece that may fail; each makes several attempts


class Store(Protocol):
    """The part of `SliceStore` that is used here."""

    async def obtain(
        self, offer: SliceOffer, progress: Progress | None = None, memory_bytes: int | None = None
    ) -> HeldSlice: ...


class Outcome(Enum):
    """The result of a fetch."""

    FETCHED = "fetched"
    AGAIN = "again"  # try this piece again later
    HOPELESS = "hopeless"  # give this piece up
    NO_ROOM = "no room"  # give this piece up, and wait longer before asking for another


@dataclass(frozen=True, slots=True)
class Fetched:
    """The end of a fetch. `problem` is for people."""

    piece: Piece
    outcome: Outcome
    problem: str = ""


class Fetcher:
    """The slices of one site. `make_store` makes a store for a token."""

    def __init__(self, site: str, budget_bytes: int, make_store: Callable[[str], Store]) -> None:
        self._site = site
        self._budget_bytes = budget_bytes
        self._make_store = make_store
        self._store: Store | None = None
        self._held: dict[ExpertRange, HeldSlice] = {}
        self._n_rounds: dict[ExpertRange, int] = {}

    def use_token(self, token: str) -> None:
        """Use this token from now on."""
        self._store = self._make_store(token)

    def paths(self, ranges: Iterable[ExpertRange]) -> list[Path]:
        """Return the files of pieces that are held."""
        return [self._held[item].path for item in ranges]

    def keep_only(self, ranges: Sequence[ExpertRange]) -> None:
        """Release all other slices: they may be evicted from the cache."""
        for item in [item for item in self._held if item not in ranges]:
            self._held.pop(item).release()

    async def fetch(self, fingerprint: str, piece: Piece, others_bytes: int, progress: Progress) -> Fetched:
        """Download a piece. `others_bytes` is what the other pieces take of the budget. Raises no DownloadError."""
        offer = SliceOffer.at(self._site, fingerprint, [piece.range])
        try:
            if self._store is None:
                raise SourceRefusedError("there is no token yet")
            held = await self._store.obtain(offer, progress, self._budget_bytes - others_bytes)
        except DownloadError as error:
            return Fetched(piece, self._outcome(piece, error), str(error))
        self._n_rounds.pop(piece.range, None)
        self._held[piece.range] = held
        return Fetched(piece, Outcome.FETCHED)

    def _outcome(self, piece: Piece, error: DownloadError) -> Outcome:
        if isinstance(error, DoesNotFitError | CacheFullError | DiskFullError):
            return Outcome.NO_ROOM
        n_rounds = self._n_rounds.get(piece.range, 0) + 1
        if isinstance(error, SourceRefusedError) or n_rounds >= ROUNDS_MOST:
            self._n_rounds.pop(piece.range, None)
            return Outcome.HOPELESS
        self._n_rounds[piece.range] = n_rounds
        return Outcome.AGAIN
