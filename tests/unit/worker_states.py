"""States of a worker for tests of its plan: a node at NOW that holds, was promised or lacks what a test says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvasir.experts import ExpertRange
from kvasir.worker.agent.demand import Demand, DemandRun
from kvasir.worker.agent.plan import to_state
from kvasir.worker.agent.plan_state import NotBefore, Piece, SiteModel, WorkerState

NOW = 1000.0
LATER = 10_000.0
ROOM = 1_000_000
MODEL = SiteModel("demo", "f" * 64, 4, 8)
A, B, C = ExpertRange(0, 0, 4), ExpertRange(0, 4, 8), ExpertRange(1, 0, 8)


def piece(item: ExpertRange, *, lease: str = "", is_fetched: bool = True) -> Piece:
    return Piece(item, 100 * item.n_experts, "kx1", lease, is_fetched)


def promise(item: ExpertRange, lease: str = "a" * 16) -> Piece:
    return piece(item, lease=lease, is_fetched=False)


def times(**changes: float) -> NotBefore:
    """Nothing is due by itself but what `changes` says."""
    usual = {"heartbeat_s": LATER, "volunteer_s": LATER, "look_s": LATER}
    return NotBefore(**usual | changes)


def new_node() -> WorkerState:
    """Registered a moment ago."""
    return WorkerState(ROOM, node_id="node")


def at_rest(*served: ExpertRange, **changes: Any) -> WorkerState:
    """A node that serves and states these pieces and has nothing else to do."""
    usual: dict[str, Any] = {
        "room_bytes": ROOM,
        "node_id": "node",
        "model": MODEL,
        "pieces": tuple(piece(item) for item in served),
        "served": tuple(sorted(served)),
        "is_joined": True,
        "times": times(),
    }
    state = WorkerState(**usual | changes)
    if "stated" in changes:
        return state
    return replace(state, stated=to_state(state, NOW))


def demand(*runs: tuple[ExpertRange, int, int]) -> Demand:
    """Of (range, replicas, target)."""
    return Demand(MODEL.fingerprint, tuple(DemandRun(*run) for run in runs))
