"""Pure transitions from one `WorkerState` to the next, one for each kind of event.

`agent` applies them to the answers that it gets; `plan` decides from the result. Moments are seconds of the plan's
clock.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from kvasir.edge.reconnect import reconnect_delay_s
from kvasir.experts import ExpertRange
from kvasir.worker.agent.demand import Demand
from kvasir.worker.agent.fetch import Fetched, Outcome
from kvasir.worker.agent.market_client import Assigned, NothingWanted
from kvasir.worker.agent.plan_state import Move, Piece, Ranges, WorkerState

SERVE_WITHIN_S = 30.0  # that a fetched range waits at most for others
BEATS_PER_LEASE = 3
BEAT_SHORTEST = 0.7  # of that interval; random up to 1
NO_ROOM_RETRY_S = 300.0
HOPELESS_RETRY_S = 60.0
HELD_ALREADY_RETRY_S = 5.0
FAILED_BEFORE = 6  # failures that the reconnect rule counts after a failed download, which already took long


def not_before(state: WorkerState, **moments: float) -> WorkerState:
    """Set moments in `times`."""
    changes: dict[str, Any] = dict(moments)
    return replace(state, times=replace(state.times, **changes))


def promised(state: WorkerState, answer: Assigned, now: float) -> WorkerState:
    """Add a leased piece to fetch. An assignment that overlaps a piece is ignored, and asked for later again."""
    if any(_overlap(piece.range, answer.range) for piece in state.pieces):
        return not_before(state, volunteer_s=now + HELD_ALREADY_RETRY_S)
    piece = Piece(answer.range, answer.n_bytes, answer.kernel, answer.lease_id)
    return replace(state, model=answer.model, pieces=(*state.pieces, piece), is_crowded=False)


def not_wanted(state: WorkerState, answer: NothingWanted, now: float) -> WorkerState:
    """Wait as long as the market said before asking again."""
    return not_before(replace(state, is_crowded=answer.is_crowded), volunteer_s=now + answer.retry_after_s)


def fetched(state: WorkerState, done: Fetched, now: float, jitter: float) -> WorkerState:
    """Record the end of a download; `jitter` is random in [0, 1)."""
    state = replace(state, is_fetching=False)
    item = done.piece.range
    if done.outcome is Outcome.FETCHED:
        pieces = tuple(replace(piece, is_fetched=True) if piece.range == item else piece for piece in state.pieces)
        return replace(state, pieces=pieces, serve_by_s=min(state.serve_by_s, now + SERVE_WITHIN_S))
    if done.outcome is Outcome.AGAIN:
        return not_before(state, fetch_s=now + reconnect_delay_s(FAILED_BEFORE, jitter))
    wait_s = NO_ROOM_RETRY_S if done.outcome is Outcome.NO_ROOM else HOPELESS_RETRY_S
    return not_before(_without(state, item), volunteer_s=now + wait_s)


def served(state: WorkerState, ranges: Ranges) -> WorkerState:
    """Record that exactly these pieces are at the relay."""
    return replace(state, served=ranges, serve_by_s=math.inf, is_joined=state.is_joined and bool(ranges))


def beaten(state: WorkerState, ranges: Ranges, lease_s: float, now: float, jitter: float) -> WorkerState:
    """Record an accepted heartbeat with these ranges; the leases of pieces that it states have ended."""
    share = BEAT_SHORTEST + (1 - BEAT_SHORTEST) * jitter
    state = not_before(state, heartbeat_s=now + share * lease_s / BEATS_PER_LEASE)
    if ranges == state.stated:
        return state
    at_relay = set(state.served) if ranges else set()
    pieces = tuple(replace(piece, lease_id="") if piece.range in at_relay else piece for piece in state.pieces)
    return replace(state, pieces=pieces, stated=ranges, demand=None)


def looked(state: WorkerState, demand: Demand, now: float, every_s: float) -> WorkerState:
    """Record a demand that was read now."""
    return not_before(replace(state, demand=demand, demand_s=now), look_s=now + every_s)


def moving(state: WorkerState, item: ExpertRange, at_s: float) -> WorkerState:
    """Record that a piece may be given up at that moment."""
    return replace(state, move=Move(item, at_s))


def withdrawn(state: WorkerState, item: ExpertRange, now: float) -> WorkerState:
    """Record that heartbeats no longer state a piece."""
    return replace(state, move=Move(item, now, is_withdrawn=True))


def stayed(state: WorkerState) -> WorkerState:
    """End the move and keep the piece; the demand is read again before the next move."""
    return replace(state, move=None, demand=None)


def dropped(state: WorkerState, item: ExpertRange, now: float) -> WorkerState:
    """Remove a piece and ask for other work at once."""
    state = replace(_without(state, item), move=None, demand=None, is_crowded=False)
    return not_before(state, volunteer_s=now)


def forgotten(state: WorkerState) -> WorkerState:
    """Remove all pieces: the site has another model."""
    nothing: Ranges = ()
    state = replace(state, model=None, pieces=(), is_fetching=False, served=nothing, stated=nothing)
    return replace(state, move=None, demand=None, is_crowded=False)


def relay_changed(state: WorkerState, is_joined: bool, now: float) -> WorkerState:
    """Record that the relay was joined or lost."""
    return state if is_joined == state.is_joined else replace(state, is_joined=is_joined, lost_s=now)


def _without(state: WorkerState, item: ExpertRange) -> WorkerState:
    return replace(state, pieces=tuple(piece for piece in state.pieces if piece.range != item))


def _overlap(one: ExpertRange, other: ExpertRange) -> bool:
    return one.layer == other.layer and one.start < other.stop and other.start < one.stop
