"""An agent's edges at the relay, and the handover to new ones without an interruption.

Backbones learn what a worker holds when an edge opens, so a change of holdings needs new edges. They open first, and
both sets serve while backbones test the new ones; then the old ones announce their end, answer the requests in flight
and close.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kvasir.worker.serving.config import RelayAccess
from kvasir.worker.serving.holdings import Holdings
from kvasir.worker.serving.join import RelayWorker

HANDOVER_S = 20.0  # for the new edges to join; without a relay there is nothing to hand over
OVERLAP_S = 3.0  # both serve: a backbone tests a new edge before it sends work

log = logging.getLogger(__name__)

OnChange = Callable[[bool, str], None]  # is_joined, reason if not


class Joined(Protocol):
    """The part of `RelayWorker` that is used here."""

    async def run(self) -> None: ...
    def stop(self, reason: str) -> None: ...


@dataclass(slots=True, eq=False)
class _Session:
    """One `RelayWorker`, its task, and whether it is joined."""

    worker: Joined
    task: asyncio.Task[None]
    is_joined: bool = False


class AgentEdge:
    """The edges at one relay. `on_change` is called for the current session, not for one that is leaving."""

    def __init__(
        self,
        on_change: OnChange,
        make_worker: Callable[..., Joined] = RelayWorker,
        handover_s: float = HANDOVER_S,
        overlap_s: float = OVERLAP_S,
    ) -> None:
        self._on_change = on_change
        self._make_worker = make_worker
        self._handover_s = handover_s
        self._overlap_s = overlap_s
        self._current: _Session | None = None
        self._overlapping: list[_Session] = []
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def is_serving(self) -> bool:
        """Whether there is a session, joined or dialling."""
        return self._current is not None

    async def serve(self, holdings: Holdings, relay_url: str, token: str) -> bool:
        """Serve these holdings instead of the previous ones; return False if those stay because only they are joined.

        If neither session reaches the relay, the new one becomes current and keeps dialling.
        """
        old = self._current
        news = asyncio.Event()
        new = self._start(holdings, RelayAccess(relay_url, token), news)
        if old is None:
            self._current = new
        try:
            async with asyncio.timeout(self._handover_s):
                while not new.is_joined and not new.task.done():
                    await news.wait()
                    news.clear()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if old is not None:
                self._let_go(new, "the handover was cancelled")
            raise
        if old is not None and old.is_joined and not new.is_joined:
            self._let_go(new, "the relay did not accept the new edges")
            return False
        self._current = new
        if old is not None:
            self._overlapping.append(old)
            asyncio.get_running_loop().call_later(self._overlap_s, self._end_overlap, old)
        self._on_change(new.is_joined, "" if new.is_joined else "the relay is away")
        return True

    async def stop(self, reason: str) -> None:
        """Announce the end, answer the requests in flight and close, all within the stop deadline."""
        for session in tuple(self._overlapping):
            self._end_overlap(session)
        if self._current is not None:
            self._let_go(self._current, reason)
            self._current = None
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def _start(self, holdings: Holdings, relay: RelayAccess, news: asyncio.Event) -> _Session:
        def on_joined() -> None:
            self._changed(session, True, "")
            news.set()

        def on_lost(reason: str) -> None:
            self._changed(session, False, reason)

        worker = self._make_worker(relay, holdings, on_joined=on_joined, on_lost=on_lost)
        session = _Session(worker, asyncio.get_running_loop().create_task(worker.run()))
        session.task.add_done_callback(lambda task: self._ended(session, task))
        session.task.add_done_callback(lambda _: news.set())
        return session

    def _changed(self, session: _Session, is_joined: bool, reason: str) -> None:
        session.is_joined = is_joined
        if self._current is session:
            self._on_change(is_joined, reason)

    def _end_overlap(self, session: _Session) -> None:
        if session in self._overlapping:
            self._overlapping.remove(session)
            self._let_go(session, "this worker serves other experts now")

    def _let_go(self, session: _Session, reason: str) -> None:
        session.worker.stop(reason)
        self._leaving.add(session.task)
        session.task.add_done_callback(self._leaving.discard)

    def _ended(self, session: _Session, task: asyncio.Task[None]) -> None:
        """Report a session that ended by itself, so that a defect does not leave a worker that only seems to serve."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("serving failed", exc_info=error)
        if self._current is session:
            self._current = None
            self._on_change(False, f"{type(error).__name__}: {error}" if error is not None else "the session ended")
