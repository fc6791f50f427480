"""Keeps one worker's measurements for a transport: starts a watch for each dispatch, stops it with the answer.

Called by the engine's thread and by the transport's own; a lock keeps the two apart. It reads a clock that is given to
it, and knows neither edges nor health.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from backbone.engine.swarm.measured import Measured


class WorkerMeter:
    """One worker's `Measured`, as it is now."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._measured = Measured()

    @property
    def measured(self) -> Measured:
        """A look without waiting."""
        return self._measured

    def start(self, n_pairs: int, n_bytes: int) -> Callable[[Future[Any]], None]:
        """Count a dispatch that leaves now. What is returned is called when it ends; only a result counts as an answer.

        Called before the dispatch is on its way: on a busy machine its answer may be there before this thread goes on,
        and an answer that seems to take no time at all makes patience with all later ones too short.
        """
        with self._lock:
            expected_s = self._measured.expected_s(n_pairs)
            self._measured = self._measured.after_sent(n_pairs, n_bytes)
            n_pairs_ahead = self._measured.n_pairs_under_way
        sent_at = self._clock()

        def stop(done: Future[Any]) -> None:
            seconds = self._clock() - sent_at
            with self._lock:
                self._measured = self._measured.after_end(n_pairs, n_bytes)
                if not done.cancelled() and done.exception() is None:
                    self._measured = self._measured.after_answer(n_pairs_ahead, seconds, expected_s)

        return stop
