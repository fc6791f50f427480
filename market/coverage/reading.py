"""The read side of coverage: how many replicas each expert has now, and which workers hold them.

For the dashboard and other readers in any process with the same Redis; they need no model file. A read removes
expired workers and leases first, so no snapshot has a worker whose heartbeat has expired.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

from redis import Redis

from kvasir.experts import ExpertRange
from market.coverage.codec import coverage_key, unpack_counts, unpack_ranges, unpack_targets
from market.coverage.model_facts import ModelFacts
from market.coverage.scarcity import Counts
from market.coverage.store import Clock, CoverageStore, unix_ms
from market.settings import TargetBounds

_SHAPE_EXPIRY_S = 3600


@dataclass(frozen=True, slots=True)
class WorkerCoverage:
    """One live worker: the ranges that it holds, when its heartbeat expires, the facts that it stated."""

    worker_id: str
    ranges: tuple[ExpertRange, ...]
    expires_ms: int
    facts: dict[str, Any] = field(default_factory=dict)
    since_ms: int | None = None  # Unix time of its first heartbeat since its last absence


@dataclass(frozen=True, slots=True, eq=False)
class CoverageSnapshot:
    """A model's coverage at one moment. Arrays are [n_layer, n_expert]; targets are 0 in layers without experts."""

    fingerprint: str
    name: str
    version: int
    replicas: Counts
    pending: Counts  # leased, and not yet held
    targets: Counts
    workers: tuple[WorkerCoverage, ...]  # by id; empty unless asked for

    @property
    def n_lacking(self) -> int:
        """The number of replicas missing below the targets; pending ones count as missing."""
        return int((self.targets - self.replicas).clip(min=0).sum())


def announce_shape(store: CoverageStore) -> None:
    """Publish the model's shape, with which other processes read its coverage without the file."""
    facts = store.facts
    shape = {"name": facts.name, "n_expert": facts.n_expert, "expert_bytes": facts.expert_bytes}
    shape |= {"d_model": facts.d_model, "d_ff": facts.d_ff}
    store.client.set(coverage_key(facts.fingerprint, "shape"), json.dumps(shape), ex=_SHAPE_EXPIRY_S)


def snapshot(
    client: Redis, fingerprint: str, bounds: TargetBounds, *, with_workers: bool = False, clock: Clock = unix_ms
) -> CoverageSnapshot | None:
    """Return the coverage now, or None when no site has served this model lately. Raises Redis's errors."""
    packed = cast(Any, client.get(coverage_key(fingerprint, "shape")))
    if packed is None:
        return None
    shape = json.loads(packed)
    sizes = tuple(shape["expert_bytes"])
    facts = ModelFacts(
        shape["name"], fingerprint, len(sizes), shape["n_expert"], shape["d_model"], shape["d_ff"], sizes
    )
    return snapshot_of(CoverageStore(client, facts, clock), bounds, with_workers=with_workers)


def snapshot_of(store: CoverageStore, bounds: TargetBounds, *, with_workers: bool = False) -> CoverageSnapshot:
    """Return the coverage now, from an open store. Raises Redis's errors."""
    view = store.look()
    return CoverageSnapshot(
        fingerprint=store.facts.fingerprint,
        name=store.facts.name,
        version=view.version,
        replicas=unpack_counts(view.counts, store.facts),
        pending=unpack_counts(view.pending, store.facts),
        targets=unpack_targets(view.targets, store.facts, bounds),
        workers=_workers(store) if with_workers else (),
    )


def _workers(store: CoverageStore) -> tuple[WorkerCoverage, ...]:
    fingerprint = store.facts.fingerprint
    pipeline = store.client.pipeline(transaction=True)
    pipeline.zrange(coverage_key(fingerprint, "beats"), 0, -1, withscores=True)
    pipeline.hgetall(coverage_key(fingerprint, "holdings"))
    pipeline.hgetall(coverage_key(fingerprint, "facts"))
    pipeline.hgetall(coverage_key(fingerprint, "since"))
    beats, holdings, facts, since = cast(Any, pipeline.execute())
    found = [
        WorkerCoverage(
            worker.decode(),
            unpack_ranges(holdings.get(worker)),
            int(expires),
            json.loads(facts.get(worker, b"{}")),
            int(since[worker]) if worker in since else None,
        )
        for worker, expires in beats
    ]
    return tuple(sorted(found, key=lambda item: item.worker_id))
