"""The plan: pure functions from a worker's state to its next action.

`agent` calls `next_action` after every event and performs the result; `wait_s` is the time until the next action may be
due. Each rule returns an action or None; the first action wins.
"""

from __future__ import annotations

from kvasir.experts import ExpertRange
from kvasir.slicing.expert_ranges import merge_ranges
from kvasir.worker.agent.demand import Demand
from kvasir.worker.agent.plan_actions import (
    Action,
    Beat,
    Drop,
    Fetch,
    Leave,
    Look,
    PlanMove,
    Register,
    Rotate,
    Serve,
    Stay,
    Volunteer,
    Withdraw,
)
from kvasir.worker.agent.plan_state import Ranges, WorkerState

UNFETCHED_MOST = 8  # leased pieces at a time; the market allows 64
GRACE_S = 15.0  # without the relay before heartbeats stop stating experts that backbones cannot reach
LONGEST_WAIT_S = 60.0


def next_action(state: WorkerState, now: float) -> Action | None:
    """Return the action that is due now, or None: then call again after `wait_s`, or once the state has changed."""
    return (
        _leave(state)
        or _register(state, now)
        or _rotate(state, now)
        or _serve(state, now)
        or _beat(state, now)
        or _fetch(state, now)
        or _volunteer(state, now)
        or _conclude_move(state, now)
        or _begin_move(state, now)
        or _plan_move(state, now)
        or _look(state, now)
    )


def wait_s(state: WorkerState, now: float) -> float:
    """Return the seconds until an action may become due without an event; at most LONGEST_WAIT_S."""
    times = state.times
    moments = [
        now + LONGEST_WAIT_S,
        times.site_s,
        times.heartbeat_s,
        times.volunteer_s,
        times.fetch_s,
        times.serve_s,
        times.look_s,
    ]
    moments += [times.rotate_s, state.serve_by_s, state.lost_s + GRACE_S]
    if state.move is not None:
        moments.append(state.move.at_s)
    return min(moment - now for moment in moments if moment > now)


def to_state(state: WorkerState, now: float) -> Ranges:
    """Return what a heartbeat states now: the ranges that backbones can reach, without one that was withdrawn."""
    if not state.is_joined and now >= state.lost_s + GRACE_S:
        return ()
    withdrawn = state.move.range if state.move is not None and state.move.is_withdrawn else None
    return merge_ranges(item for item in state.served if item != withdrawn)


def is_settled(state: WorkerState, now: float) -> bool:
    """Return whether all pieces are served and stated, and the market had no more work for this worker."""
    is_at_rest = state.is_joined and not state.unfetched and now < state.times.volunteer_s
    return is_at_rest and bool(state.served) and state.fetched == state.served and to_state(state, now) == state.stated


def _leave(state: WorkerState) -> Action | None:
    return Leave(state.stop_reason) if state.stop_reason else None


def _register(state: WorkerState, now: float) -> Action | None:
    return Register() if not state.node_id and now >= state.times.site_s else None


def _rotate(state: WorkerState, now: float) -> Action | None:
    """Exchange the token, but not during a download, which uses the old one."""
    is_time = now >= max(state.times.rotate_s, state.times.site_s)
    return Rotate() if state.node_id and is_time and not state.is_fetching else None


def _serve(state: WorkerState, now: float) -> Action | None:
    """Serve fetched pieces at once, unless more are coming: each change opens new connections."""
    fetched = state.fetched
    if fetched == state.served or now < state.times.serve_s:
        return None
    is_filling = bool(state.unfetched) or _may_volunteer(state, now)
    if is_filling and set(fetched) > set(state.served) and now < state.serve_by_s:
        return None
    return Serve(fetched)


def _beat(state: WorkerState, now: float) -> Action | None:
    if not state.node_id or state.model is None or now < state.times.site_s:
        return None
    ranges = to_state(state, now)
    leases = tuple(piece.lease_id for piece in state.pieces if piece.lease_id)
    if ranges != state.stated:
        return Beat(ranges, leases)
    return Beat(ranges, leases) if now >= state.times.heartbeat_s and (ranges or leases) else None


def _fetch(state: WorkerState, now: float) -> Action | None:
    if state.is_fetching or not state.unfetched or not state.node_id or now < state.times.fetch_s:
        return None
    return Fetch(state.unfetched[0])


def _volunteer(state: WorkerState, now: float) -> Action | None:
    if not _may_volunteer(state, now):
        return None
    return Volunteer(state.room_bytes, merge_ranges(piece.range for piece in state.pieces))


def _may_volunteer(state: WorkerState, now: float) -> bool:
    is_time = now >= max(state.times.volunteer_s, state.times.site_s)
    is_moving = state.move is not None and state.move.is_withdrawn
    return bool(state.node_id) and is_time and not is_moving and len(state.unfetched) < UNFETCHED_MOST


def _conclude_move(state: WorkerState, now: float) -> Action | None:
    """Drop or keep a withdrawn piece, by the market's count without it."""
    move = state.move
    if move is None or not move.is_withdrawn or to_state(state, now) != state.stated:
        return None
    if state.demand is None:
        return Look() if now >= state.times.site_s else None
    return Drop(move.range) if state.demand.surplus(move.range) >= 0 else Stay(move.range)


def _begin_move(state: WorkerState, now: float) -> Action | None:
    """Withdraw the piece at the chosen moment, if it is still superfluous."""
    move = state.move
    if move is None or move.is_withdrawn or now < move.at_s:
        return None
    if state.demand is None or state.demand_s < move.at_s:
        return Look() if now >= state.times.site_s else None
    return Withdraw(move.range) if _is_superfluous(state, state.demand, move.range) else Stay(move.range)


def _plan_move(state: WorkerState, now: float) -> Action | None:
    if state.move is not None or state.demand is None or now >= state.times.look_s:
        return None
    demand = state.demand
    found = [item for item in state.served if _is_superfluous(state, demand, item)]
    return PlanMove(max(found, key=demand.surplus)) if found else None


def _look(state: WorkerState, now: float) -> Action | None:
    """Read the demand, which matters only to a worker without room for more."""
    is_time = now >= max(state.times.look_s, state.times.site_s)
    return Look() if state.is_crowded and state.served and state.move is None and is_time else None


def _is_superfluous(state: WorkerState, demand: Demand, item: ExpertRange) -> bool:
    """Return whether a served piece has a spare replica while experts that this worker lacks have too few."""
    held = [piece.range for piece in state.pieces]
    return state.is_crowded and item in state.served and demand.surplus(item) >= 1 and demand.has_gap_beside(held)
