"""Tells the dashboard once a second how this backbone is: its pulse and its work, through Redis.

`backbone_process` makes one; the heartbeat's thread calls `beat`, the engine's dispatchers tell it who served what.
When Redis is away nothing is told, and nothing else happens.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from redis import Redis
from redis.exceptions import RedisError

from backbone.engine.dispatch.counters import Served
from backbone.engine.serving.service import ServiceState
from backbone.engine.serving.shares import Shares
from backbone.engine.swarm.transport import Transport
from backbone.engine.trust.book import TrustBook
from backbone.process.latency_book import LatencyBook
from backbone.process.trust_keeper import is_node
from backbone.stream.keys import QUEUE
from market.coverage.pulse import Pulse, WorkerPulse, publish_pulse, withdraw_pulse
from market.coverage.throughput import append_work

logger = logging.getLogger(__name__)

RATE_HALF_LIFE_S = 10.0
LEAST_RATE = 0.005  # rows/s that are shown as none


class WorkMeter:
    """Row-experts per second of each worker, as moving averages. `add` comes from the engine's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pairs: Counter[str] = Counter()
        self._rates: dict[str, float] = {}

    def add(self, served: Served) -> None:
        """Count a group of pairs; the backbone's own are nobody's."""
        if served.worker_id is not None:
            with self._lock:
                self._pairs[served.worker_id] += served.n_pairs

    def rates(self, elapsed_s: float) -> dict[str, float]:
        """The averages after what was counted in the last `elapsed_s`, which is above 0."""
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
    """Where a backbone's figures come from."""

    state: Callable[[], ServiceState]
    transport: Transport
    usable: Callable[[], frozenset[str]]  # workers that may be given work
    node_of: Callable[[str], str]
    trust: TrustBook


class PulseKeeper:
    """One backbone's pulse. `work` and `latencies` are told what happens."""

    def __init__(self, client: Redis, fingerprint: str, backbone_id: str, sources: PulseSources) -> None:
        self.work = WorkMeter()
        self.latencies = LatencyBook()
        self._client = client
        self._fingerprint = fingerprint
        self._backbone_id = backbone_id
        self._sources = sources
        self._measured_at = time.monotonic()
        self._told = Counter[str]()

    def beat(self) -> None:
        """Tell everything once. Never raises what a lost Redis raises."""
        now = time.monotonic()
        rates = self.work.rates(max(now - self._measured_at, 1e-3))
        self._measured_at = now
        try:
            self._tell(rates)
        except RedisError as error:
            logger.debug("the pulse is not told: %s", error)

    def leave(self) -> None:
        """This backbone is shown no more."""
        try:
            withdraw_pulse(self._client, self._fingerprint, self._backbone_id)
        except RedisError as error:
            logger.debug("the pulse lapses by itself: %s", error)

    def _tell(self, rates: dict[str, float]) -> None:
        state = self._sources.state()
        done = _done(state.counters.n_tokens, state.counters.shares)
        append_work(self._client, self._fingerprint, done - self._told, time.time())
        self._told = done
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
        """By node; workers at an address of the operator's own network are not shown."""
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
