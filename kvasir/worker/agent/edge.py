"""An agent's place at the relay: other holdings take over without a moment in which nobody answers.

What a worker holds is told to backbones when an edge opens, so other holdings need other edges. The new ones are opened
first and both serve for a moment, in which backbones test the new ones; then the old ones say goodbye, answer what is
under way and close.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from kvasir.worker.serving.config import WorkerConfig
from kvasir.worker.serving.holdings import Holdings
from kvasir.worker.serving.join import RelayWorker

HANDOVER_S = 20.0  # for the new edges; when the relay is away that long there is nothing to hand over
OVERLAP_S = 3.0  # both serve: a backbone gives a new edge no work before it has tested it

log = logging.getLogger(__name__)

OnChange = Callable[[bool, str], None]  # whether it is joined now, and why not


class Joined(Protocol):
    """What is used of `RelayWorker`."""

    async def run(self) -> None: ...
    def stop(self, reason: str) -> None: ...


@dataclass(slots=True, eq=False)
class _Session:
    """One `RelayWorker` and what it has come to."""

    worker: Joined
    task: asyncio.Task[None]
    is_joined: bool = False


class AgentEdge:
    """One relay. `on_change` hears of the session that counts."""

    def __init__(
        self,
        config: WorkerConfig,
        on_change: OnChange,
        make_worker: Callable[..., Joined] = RelayWorker,
        handover_s: float = HANDOVER_S,
        overlap_s: float = OVERLAP_S,
    ) -> None:
        self._config = config
        self._on_change = on_change
        self._make_worker = make_worker
        self._handover_s = handover_s
        self._overlap_s = overlap_s
        self._current: _Session | None = None
        self._overlapping: list[_Session] = []
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def is_serving(self) -> bool:
        """Whether a session is there, joined or dialling."""
        return self._current is not None

    async def serve(self, holdings: Holdings, relay_url: str, token: str) -> bool:
        """Serve these holdings and no others from now on; False when those before are served on, being at the relay.

        Without a relay to be had the new session counts all the same, and dials on.
        """
        old = self._current
        news = asyncio.Event()
        new = self._start(holdings, replace(self._config, relay_url=relay_url, token=token), news)
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
                self._let_go(new, "the handover was given up")
            raise
        if old is not None and old.is_joined and not new.is_joined:
            self._let_go(new, "the relay did not take the new edges")
            return False
        self._current = new
        if old is not None:
            self._overlapping.append(old)
            asyncio.get_running_loop().call_later(self._overlap_s, self._end_overlap, old)
        self._on_change(new.is_joined, "" if new.is_joined else "the relay is away")
        return True

    async def stop(self, reason: str) -> None:
        """Say goodbye, answer what is under way, close; all within the stop deadline."""
        for session in tuple(self._overlapping):
            self._end_overlap(session)
        if self._current is not None:
            self._let_go(self._current, reason)
            self._current = None
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def _start(self, holdings: Holdings, config: WorkerConfig, news: asyncio.Event) -> _Session:
        def on_joined() -> None:
            self._changed(session, True, "")
            news.set()

        def on_lost(reason: str) -> None:
            self._changed(session, False, reason)

        worker = self._make_worker(config, holdings, on_joined=on_joined, on_lost=on_lost)
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
        """A defect must not leave a worker that only seems to serve."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("serving failed", exc_info=error)
        if self._current is session:
            self._current = None
            self._on_change(False, f"{type(error).__name__}: {error}" if error is not None else "it has ended")


def edge_config(n_threads: int | None, kernel: str) -> WorkerConfig:
    """What a `RelayWorker` needs to know; relay and token come with each session."""
    return WorkerConfig(slice_path=Path(), n_threads=n_threads, kernel=kernel)
