"""How long requests of this backbone take: until they begin, until their first token, until they are complete.

`backbone_process` tells it what happens, `pulse_keeper` passes the last requests' seconds on. All times count from the
moment that the web process took the request. Nothing here blocks.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from backbone.engine.serving.jobs import Began, Broken, Completed, JobEvents, NewToken

MOST_REQUESTS = 128
KEEP_S = 600.0


@dataclass(slots=True)
class _Timed:
    """A request that is under way. Unix seconds."""

    created: float
    began: float | None = None
    first_token: float | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """A request that is complete. Seconds; `at` is in Unix seconds."""

    at: float
    queue_s: float
    first_token_s: float
    request_s: float


class LatencyBook:
    """The last requests. `open` and `close` come from any thread, `note` from the engine's."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, _Timed] = {}
        self._ended: deque[Latency] = deque(maxlen=MOST_REQUESTS)

    def open(self, request_id: str, created: float) -> None:
        """A request was taken; `created` in Unix seconds."""
        with self._lock:
            self._open[request_id] = _Timed(created)

    def close(self, request_id: str) -> None:
        """Its stream has ended, whatever became of it."""
        with self._lock:
            self._open.pop(request_id, None)

    def note(self, events: JobEvents) -> None:
        """What the engine reports. Requests that broke are in no figure."""
        now = self._clock()
        for request_id, event in events:
            timed = self._open.get(request_id)
            if timed is None:
                continue
            match event:
                case Began() if timed.began is None:
                    timed.began = now
                case NewToken() if timed.first_token is None:
                    timed.first_token = now
                case Completed():
                    self._complete(request_id, timed, now)
                case Broken():
                    self.close(request_id)

    def recent(self) -> dict[str, tuple[float, ...]]:
        """Seconds of the last requests, by name of `market.coverage.pulse.LATENCIES`, in the order of their ends."""
        oldest = self._clock() - KEEP_S
        with self._lock:
            kept = [item for item in self._ended if item.at >= oldest]
        return {
            "queue_s": tuple(round(item.queue_s, 4) for item in kept),
            "first_token_s": tuple(round(item.first_token_s, 4) for item in kept),
            "request_s": tuple(round(item.request_s, 4) for item in kept),
        }

    def _complete(self, request_id: str, timed: _Timed, now: float) -> None:
        def since(moment: float | None) -> float:
            return max(0.0, (now if moment is None else moment) - timed.created)  # machines' clocks differ

        with self._lock:
            self._open.pop(request_id, None)
            self._ended.append(Latency(now, since(timed.began), since(timed.first_token), since(now)))
