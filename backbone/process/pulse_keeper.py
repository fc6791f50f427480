"""A backbone's pulse for the dashboard, published in Redis once a second: its state, latencies, and workers' rates.

`backbone_process` makes one and reports requests and served pairs to it; the heartbeat's thread calls `beat`. Without
Redis nothing is published, and generations go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from redis import Redis
from redis.exceptions import RedisError

from backbone.engine.dispatch.dispatcher import Served
from backbone.engine.serving.jobs import Began, Broken, Completed, JobEvents, NewToken
from backbone.engine.serving.service import ServiceState
from backbone.engine.serving.shares import Shares
from backbone.engine.swarm.transport import Transport
from backbone.engine.trust.book import TrustBook
from backbone.process.trust_keeper import is_node
from backbone.stream.keys import QUEUE
from market.coverage.pulse import Pulse, WorkerPulse, publish_pulse, withdraw_pulse
from market.coverage.throughput import append_work

logger = logging.getLogger(__name__)

MOST_REQUESTS = 128
LATENCIES_KEPT_S = 600.0
RATE_HALF_LIFE_S = 10.0
LEAST_RATE = 0.005  # row-experts/s; below it a worker's rate is 0


@dataclass(slots=True)
class _Timed:
    """A request in progress. Times in Unix seconds."""

    created: float
    began: float | None = None
    first_token: float | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """A complete request, in seconds since its creation; `at`, its end, is in Unix seconds."""

    at: float
    queue_s: float
    first_token_s: float
    request_s: float


class LatencyBook:
    """Latencies of the last requests, from the moment that the web process created them.

    `open` and `close` are called from any thread, `note` from the engine's. Nothing blocks.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, _Timed] = {}
        self._ended: deque[Latency] = deque(maxlen=MOST_REQUESTS)

    def open(self, request_id: str, created: float) -> None:
        """Add a request that was taken; `created` is in Unix seconds."""
        with self._lock:
            self._open[request_id] = _Timed(created)

    def close(self, request_id: str) -> None:
        """Remove a request whose stream has ended."""
        with self._lock:
            self._open.pop(request_id, None)

    def note(self, events: JobEvents) -> None:
        """Take the times of the engine's events. Failed requests are not counted."""
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
        """Return the last requests' latencies in order of their ends, by name of `market.coverage.pulse.LATENCIES`."""
        oldest = self._clock() - LATENCIES_KEPT_S
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


class WorkMeter:
    """Row-experts per second of each worker, as moving averages. The engine's thread calls `add`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pairs: Counter[str] = Counter()
        self._rates: dict[str, float] = {}

    def add(self, served: Served) -> None:
        """Count a group of pairs that a worker computed."""
        if served.worker_id is not None:
            with self._lock:
                self._pairs[served.worker_id] += served.n_pairs

    def rates(self, elapsed_s: float) -> dict[str, float]:
        """Update the averages by the pairs of the last `elapsed_s` (> 0) and return them."""
        with self._lock:
            pairs, self._pairs = self._pairs, Counter()
        share = 1.0 - 2.0 ** (-elapsed_s / RATE_HALF_LIFE_S)
        for name in self._rates.keys() | pairs.keys():
            before = self._rates.get(name, 0.0)
            self._rates[name] = before + (pairs[name] / elapsed_s - before) * share
        self._rates = {name: rate for name, rate in self._rates.items() if rate >= LEAST_RATE}
        return dict(self._rates)


@dataclass(frozen=True, slots=True)
class PulseSources:
    """The sources of a backbone's figures."""

    state: Callable[[], ServiceState]
    transport: Transport
    usable: Callable[[], frozenset[str]]  # workers that may be given work
    node_of: Callable[[str], str]
    trust: TrustBook


class PulseKeeper:
    """One backbone's pulse. `work` and `latencies` collect what happens."""

    def __init__(self, client: Redis, fingerprint: str, backbone_id: str, sources: PulseSources) -> None:
        self.work = WorkMeter()
        self.latencies = LatencyBook()
        self._client = client
        self._fingerprint = fingerprint
        self._backbone_id = backbone_id
        self._sources = sources
        self._measured_at = time.monotonic()
        self._published = Counter[str]()

    def beat(self) -> None:
        """Publish once. Errors of Redis are logged, not raised."""
        now = time.monotonic()
        rates = self.work.rates(max(now - self._measured_at, 1e-3))
        self._measured_at = now
        try:
            self._publish(rates)
        except RedisError as error:
            logger.debug("the pulse is not published: %s", error)

    def leave(self) -> None:
        """Remove this backbone from the dashboard."""
        try:
            withdraw_pulse(self._client, self._fingerprint, self._backbone_id)
        except RedisError as error:
            logger.debug("the pulse is not withdrawn and will expire: %s", error)

    def _publish(self, rates: dict[str, float]) -> None:
        state = self._sources.state()
        done = _done(state.counters.n_tokens, state.counters.shares)
        append_work(self._client, self._fingerprint, done - self._published, time.time())
        self._published = done
        queued = self._client.llen(QUEUE)
        pulse = Pulse(
            at_s=time.time(),
            running=state.n_running,
            waiting=state.n_waiting,
            slots=state.n_slot,
            queued=int(queued) if isinstance(queued, int) else 0,
            tokens=state.counters.n_tokens,
            row_experts={name: count for name, count in done.items() if name != "tokens"},
            latencies=self.latencies.recent(),
            workers=self._workers(rates),
        )
        publish_pulse(self._client, self._fingerprint, self._backbone_id, pulse)

    def _workers(self, rates: dict[str, float]) -> dict[str, WorkerPulse]:
        """Return the pulse of each node. Workers at an address in the operator's own network are left out."""
        sources = self._sources
        measured, usable = sources.transport.measurements(), sources.usable()
        found = {}
        for worker_id in sources.transport.live() | usable | rates.keys():
            node = sources.node_of(worker_id)
            if not is_node(node):
                continue
            known = measured.get(worker_id)
            trip = round(known.base_s * 1000, 2) if known is not None and known.n_answers else None
            rate = round(rates.get(worker_id, 0.0), 2)
            found[node] = WorkerPulse(trip, rate, worker_id in usable, sources.trust.is_proven(node))
        return found


def _done(n_tokens: int, shares: Shares) -> Counter[str]:
    return Counter(tokens=n_tokens, workers=shares.workers, hot=shares.hot, fallback=shares.fallback)
