"""The read side of coverage: which experts have how many replicas now, and who holds them.

For the backbone and the dashboard, in any process that has the same Redis; neither opens a model for it. Reading takes
away what has ended first, so a worker that is silent past its lease is in no snapshot.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

from redis import Redis

from kvasir.experts import ExpertRange
from market.coverage.codec import Counts, coverage_key, unpack_ranges
from market.coverage.model_facts import ModelFacts
from market.coverage.store import Clock, CoverageStore, unix_ms
from market.coverage.target_store import targets_in
from market.coverage.targets import TargetBounds

_SHAPE_EXPIRY_S = 3600


@dataclass(frozen=True, slots=True)
class WorkerCoverage:
    """One living worker: what it holds, until when it counts without another heartbeat, what it said of itself."""

    worker_id: str
    ranges: tuple[ExpertRange, ...]
    expires_ms: int
    facts: dict[str, Any] = field(default_factory=dict)
    since_ms: int | None = None  # Unix time of its first heartbeat since it was last gone


@dataclass(frozen=True, slots=True, eq=False)
class CoverageSnapshot:
    """A model's coverage at one moment. Arrays are [n_layer, n_expert]; targets are 0 in layers without experts."""

    fingerprint: str
    name: str
    version: int
    replicas: Counts
    pending: Counts  # promised, and not yet there
    targets: Counts
    workers: tuple[WorkerCoverage, ...]  # by id; empty unless they were asked for

    @property
    def n_lacking(self) -> int:
        """Replicas that are missing below the targets, promises not counted."""
        return int((self.targets - self.replicas).clip(min=0).sum())


def announce_shape(store: CoverageStore) -> None:
    """Let other processes read this model's coverage without its file."""
    facts = store.facts
    shape = {"name": facts.name, "n_expert": facts.n_expert, "expert_bytes": facts.expert_bytes}
    shape |= {"d_model": facts.d_model, "d_ff": facts.d_ff}
    store.client.set(coverage_key(facts.fingerprint, "shape"), json.dumps(shape), ex=_SHAPE_EXPIRY_S)


def snapshot(
    client: Redis, fingerprint: str, bounds: TargetBounds, *, with_workers: bool = False, clock: Clock = unix_ms
) -> CoverageSnapshot | None:
    """What is covered now, or None when no site has traded this model lately. Redis's errors rise."""
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
    """The same from an open store."""
    view = store.look()
    return CoverageSnapshot(
        fingerprint=store.facts.fingerprint,
        name=store.facts.name,
        version=view.version,
        replicas=store.counts(view.counts),
        pending=store.counts(view.pending),
        targets=targets_in(view.targets, store.facts, bounds),
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
