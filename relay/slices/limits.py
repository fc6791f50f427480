"""Limits of what one node may fetch: downloads at once, and bytes per second over all of them.

`slices.server` has one book; with several web processes each counts for itself. Used on the event loop alone. Nothing
here waits: the functions return how long to wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvasir.errors import KvasirError

BURST_S = 0.25  # seconds of a node's rate that may be sent at once


class BusyError(KvasirError):
    """A limit is reached; a request after `retry_after_s` seconds may succeed."""

    def __init__(self, message: str, status: int, retry_after_s: int) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class SliceLimits:
    """The limits. Zero bytes per second means no limit."""

    downloads_per_node: int = 4
    downloads: int = 64  # of all nodes together
    bytes_per_s: int = 0  # of one node
    requests: int = 256  # not answered yet, of all nodes together


@dataclass(slots=True)
class Throttle:
    """Bounds the bytes per second of one node."""

    bytes_per_s: int
    clock: Callable[[], float]
    _ready_at: float = field(default=0.0)

    @property
    def piece_bytes(self) -> int | None:
        """The most bytes to send at once, or None for any number."""
        return max(4096, int(self.bytes_per_s * BURST_S)) if self.bytes_per_s else None

    @property
    def is_owing(self) -> bool:
        """Whether the next bytes would have to wait."""
        return self._ready_at > self.clock()

    def wait_s(self, n_bytes: int) -> float:
        """Return the seconds to wait before sending these bytes, which count as sent from now on."""
        if not self.bytes_per_s:
            return 0.0
        now = self.clock()
        start = max(self._ready_at, now)
        self._ready_at = start + n_bytes / self.bytes_per_s
        return start - now


class DownloadBook:
    """The requests and downloads under way."""

    def __init__(self, limits: SliceLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._throttles: dict[str, Throttle] = {}
        self._n_requests = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request. Raises BusyError when too many are under way."""
        if self._n_requests >= self.limits.requests:
            raise BusyError(f"{self.limits.requests} requests for slices are under way", 503, 1)
        self._n_requests += 1
        try:
            yield
        finally:
            self._n_requests -= 1

    @contextmanager
    def download(self, node: str) -> Iterator[Throttle]:
        """Count one download of a node. Raises BusyError when the node, or all nodes together, have too many."""
        if self._running[node] >= self.limits.downloads_per_node:
            raise BusyError(f"node {node} has {self._running[node]} downloads running, which is its limit", 429, 2)
        if self._running.total() >= self.limits.downloads:
            raise BusyError(f"{self.limits.downloads} downloads are running, which is this site's limit", 503, 2)
        self._running[node] += 1
        try:
            yield self._throttles.setdefault(node, Throttle(self.limits.bytes_per_s, self._clock))
        finally:
            self._running[node] -= 1
            if not self._running[node]:
                del self._running[node]
            self._throttles = {
                name: kept for name, kept in self._throttles.items() if name in self._running or kept.is_owing
            }
