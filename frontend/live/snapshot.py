"""The dashboard's snapshot: the swarm as one JSON object (docs/operate/dashboard.md), complete every time. Pure.

Called by `frontend.live.feed`. Nodes are shown by their public ids, never by name or address.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from frontend.live.readings import Readings
from market.coverage.model_facts import ModelFacts
from market.coverage.pulse import LATENCIES, SOURCES, Pulse, WorkerPulse
from market.coverage.reading import CoverageSnapshot, WorkerCoverage
from market.coverage.throughput import SERIES, STEP_S, Throughput
from market.coverage.traffic import Traffic
from market.errors import MarketError
from market.nodes.trust_store import SavedTrust

VERSION = 1
MOST_WORKERS = 500
GZIP_LEVEL = 5
_NOBODY = WorkerPulse()
_NEW = SavedTrust()


def snapshot_json(readings: Readings, trust: Mapping[str, SavedTrust]) -> dict[str, Any]:
    """Return the snapshot. `trust` is by node; nodes without an entry are new."""
    node_ids = readings.node_ids
    return {
        "v": VERSION,
        "at": readings.at_ms,
        "problem": None,
        "model": _model(readings.facts),
        "coverage": _coverage(readings.coverage),
        "traffic": rounded(readings.traffic),
        "n_workers": len(node_ids),
        "workers": _workers(readings, node_ids, trust),
        "service": _service(readings.pulses),
        "latency": _latency(readings.pulses),
        "throughput": _throughput(readings.throughput),
    }


def problem_json(at_ms: int, error: MarketError) -> dict[str, Any]:
    """Return the snapshot of a site without a model, with the reason."""
    return {"v": VERSION, "at": at_ms, "problem": {"code": error.code, "message": str(error)}, "model": None}


def packed(snapshot: Mapping[str, Any]) -> bytes:
    """Return a snapshot as compressed JSON, ready to send to all watchers."""
    text = json.dumps(snapshot, separators=(",", ":"), allow_nan=False)
    return gzip.compress(text.encode(), GZIP_LEVEL, mtime=0)


def rounded(traffic: Traffic) -> list[float]:
    """Return rows/s [n_layer * n_expert] with three significant digits."""
    cells = traffic.reshape(-1).astype(np.float64)
    scale = 10.0 ** (2 - np.floor(np.log10(np.where(cells > 0, cells, 1.0))))
    found: list[float] = (np.round(cells * scale) / scale).tolist()
    return found


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of the values do not exceed; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _model(facts: ModelFacts) -> dict[str, Any]:
    return {
        "name": facts.name,
        "fingerprint": facts.fingerprint,
        "n_layer": facts.n_layer,
        "n_expert": facts.n_expert,
        "moe_layers": list(facts.moe_layers),
        "expert_bytes": list(facts.expert_bytes),
    }


def _coverage(coverage: CoverageSnapshot) -> dict[str, Any]:
    wanted = coverage.targets > 0
    return {
        "version": coverage.version,
        "replicas": coverage.replicas.reshape(-1).tolist(),
        "pending": coverage.pending.reshape(-1).tolist(),
        "targets": coverage.targets.reshape(-1).tolist(),
        "n_wanted": int(wanted.sum()),
        "n_covered": int((coverage.replicas[wanted] > 0).sum()),
        "n_at_target": int((coverage.replicas >= coverage.targets)[wanted].sum()),
        "n_lacking": coverage.n_lacking,
    }


def _workers(readings: Readings, node_ids: Iterable[str], trust: Mapping[str, SavedTrust]) -> list[dict[str, Any]]:
    """Return the MOST_WORKERS busiest workers, the busiest first."""
    covering = {worker.worker_id: worker for worker in readings.coverage.workers}
    busy_first = sorted(node_ids, key=lambda node: (-readings.by_node.get(node, _NOBODY).rows_per_s, node))
    return [
        _worker(
            covering.get(node, WorkerCoverage(node, (), 0)),
            readings.by_node.get(node, _NOBODY),
            trust.get(node, _NEW),
            readings.facts,
        )
        for node in busy_first[:MOST_WORKERS]
    ]


def _worker(covers: WorkerCoverage, seen: WorkerPulse, known: SavedTrust, facts: ModelFacts) -> dict[str, Any]:
    said = covers.facts
    return {
        "id": covers.worker_id,
        "kind": said.get("device_kind", ""),
        "backend": said.get("backend", ""),
        "os": said.get("os", ""),
        "region": said.get("region", ""),
        "ranges": [[item.layer, item.start, item.stop] for item in covers.ranges],
        "n_experts": sum(item.n_experts for item in covers.ranges),
        "bytes": sum(facts.range_bytes(item) for item in covers.ranges),
        "round_trip_ms": seen.round_trip_ms,
        "rows_per_s": seen.rows_per_s,
        "usable": seen.usable,
        "trust": "quarantined" if known.quarantined else "proven" if seen.proven else "unproven",
        "verified": known.verified,
        "failures": known.failures,
        "since_ms": covers.since_ms,
    }


def _service(pulses: Sequence[Pulse]) -> dict[str, Any]:
    """Return sums over backbones; they share one queue, so the newest pulse has its length."""
    newest = max(pulses, key=lambda pulse: pulse.at_s, default=None)
    return {
        "n_backbones": len(pulses),
        "running": sum(pulse.running for pulse in pulses),
        "waiting": sum(pulse.waiting for pulse in pulses),
        "slots": sum(pulse.slots for pulse in pulses),
        "queued": None if newest is None else newest.queued,
        "tokens": sum(pulse.tokens for pulse in pulses),
        "row_experts": {name: sum(pulse.row_experts.get(name, 0) for pulse in pulses) for name in SOURCES},
    }


def _latency(pulses: Sequence[Pulse]) -> dict[str, Any]:
    """Return percentiles over the recent requests of all backbones, in seconds."""
    found: dict[str, Any] = {}
    for name in LATENCIES:
        values = [value for pulse in pulses for value in pulse.latencies.get(name, ())]
        found[name] = {"n": len(values), "p50": percentile(values, 0.5), "p95": percentile(values, 0.95)}
    return found


def _throughput(throughput: Throughput) -> dict[str, Any]:
    rates = {name: [round(rate, 1) for rate in throughput.rates[name]] for name in SERIES}
    return {"step_s": STEP_S, "end_s": throughput.end_s, **rates}
