"""The fourth phase: a full worker gives up what others hold too often for what is lacking; never below the target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvasir.experts import ExpertRange
from kvasir.worker.agent import plan_changes as after
from kvasir.worker.agent.demand import Demand
from kvasir.worker.agent.plan import next_action, to_state, wait_s
from kvasir.worker.agent.plan_actions import Beat, Drop, Look, PlanMove, Serve, Stay, Volunteer, Withdraw
from kvasir.worker.agent.plan_state import Move, WorkerState
from tests.unit.worker_states import NOW, A, B, C, at_rest, demand, piece, times

TOO_MANY_A = demand((A, 4, 2), (B, 2, 2), (C, 1, 2))  # and too few of C


def crowded(seen: Demand | None, *, seen_s: float = NOW - 1, **changes: object) -> WorkerState:
    return at_rest(A, B, is_crowded=True, demand=seen, demand_s=seen_s, **changes)


def test_only_a_worker_without_room_looks() -> None:
    state = crowded(None, times=times(look_s=NOW))
    assert next_action(state, NOW) == Look()
    assert next_action(replace(state, is_crowded=False), NOW) is None
    assert next_action(replace(state, times=times(look_s=NOW, site_s=NOW + 1)), NOW) is None


def test_looks_have_their_distance() -> None:
    state = after.looked(crowded(None), demand((A, 2, 2), (B, 2, 2), (C, 1, 2)), NOW, 60.0)
    assert next_action(state, NOW + 59) is None
    assert next_action(state, NOW + 60) == Look()


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (TOO_MANY_A, PlanMove(A)),
        (demand((A, 3, 2), (B, 5, 2), (C, 1, 2)), PlanMove(B)),  # the one that is held most often
        (demand((A, 3, 2), (B, 2, 2), (C, 1, 2)), PlanMove(A)),  # one beyond the target is enough
        (demand((A, 4, 2), (B, 4, 2), (C, 1, 2)), PlanMove(A)),  # the first among equals
        (demand((A, 2, 2), (B, 2, 2), (C, 1, 2)), None),  # just enough of what is held
        (demand((A, 4, 2), (B, 4, 2), (C, 2, 2)), None),  # nothing is lacking
        (demand((ExpertRange(0, 0, 3), 4, 2), (ExpertRange(0, 3, 8), 2, 2), (C, 1, 2)), None),  # one of A just enough
        (demand((ExpertRange(0, 0, 3), 4, 2), (B, 2, 2), (C, 1, 2)), None),  # one of A is unknown to the market
        (demand((A, 4, 2), (B, 1, 2), (C, 2, 2)), None),  # what is lacking is held already
    ],
)
def test_a_move_is_thought_of_only_when_it_helps_and_does_no_harm(seen: Demand, expected: object) -> None:
    assert next_action(crowded(seen), NOW) == expected


def test_a_move_waits_for_its_moment_and_looks_again_then() -> None:
    state = after.moving(crowded(TOO_MANY_A), A, NOW + 100)
    assert next_action(state, NOW + 99) is None
    assert wait_s(state, NOW + 50) == 50
    assert next_action(state, NOW + 100) == Look()
    state = after.looked(state, TOO_MANY_A, NOW + 100, 60.0)  # at that very moment
    assert next_action(state, NOW + 100) == Withdraw(A)


def test_a_move_that_has_lost_its_reason_is_not_made() -> None:
    state = after.moving(crowded(TOO_MANY_A), A, NOW)
    state = after.looked(state, demand((A, 2, 2), (B, 2, 2), (C, 1, 2)), NOW + 1, 60.0)
    assert next_action(state, NOW + 1) == Stay(A)
    assert after.stayed(state).move is None
    assert next_action(after.stayed(state), NOW + 1) is None


def test_what_is_withdrawn_is_served_on_and_not_stated() -> None:
    state = after.withdrawn(crowded(TOO_MANY_A), A, NOW)
    assert to_state(state, NOW) == (B,)
    assert next_action(state, NOW) == Beat((B,), ())
    told = after.beaten(state, (B,), 45.0, NOW + 1, 0.5)
    assert told.fetched == told.served == (A, B)
    assert next_action(told, NOW + 1) == Look()  # what was seen before the heartbeat says nothing any more


def test_nothing_is_asked_for_while_a_piece_is_withdrawn() -> None:
    state = after.withdrawn(crowded(TOO_MANY_A, times=times(volunteer_s=0)), A, NOW)
    assert next_action(after.beaten(state, (B,), 45.0, NOW, 0.5), NOW) == Look()


@pytest.mark.parametrize(("replicas", "expected"), [(3, Drop(A)), (2, Drop(A)), (1, Stay(A)), (0, Stay(A))])
def test_without_it_the_market_must_still_be_at_target(replicas: int, expected: object) -> None:
    state = after.beaten(after.withdrawn(crowded(TOO_MANY_A), A, NOW), (B,), 45.0, NOW + 1, 0.5)
    state = after.looked(state, demand((A, replicas, 2), (B, 2, 2), (C, 1, 2)), NOW + 2, 60.0)
    assert next_action(state, NOW + 2) == expected


def test_who_stays_states_it_again() -> None:
    state = after.beaten(after.withdrawn(crowded(TOO_MANY_A), A, NOW), (B,), 45.0, NOW + 1, 0.5)
    assert next_action(after.stayed(state), NOW + 1) == Beat((ExpertRange(0, 0, 8),), ())


def test_who_moves_serves_the_rest_and_volunteers_at_once() -> None:
    state = after.beaten(after.withdrawn(crowded(TOO_MANY_A), A, NOW), (B,), 45.0, NOW + 1, 0.5)
    state = after.dropped(state, A, NOW + 2)
    assert state.pieces == (piece(B),)
    assert next_action(state, NOW + 2) == Serve((B,))
    assert next_action(after.served(state, (B,)), NOW + 2) == Volunteer(state.room_bytes, (B,))


def test_two_that_withdraw_at_once_both_stay() -> None:
    """Four replicas with a target of three: either may go, both must not."""
    states = [after.withdrawn(crowded(demand((A, 4, 3), (B, 2, 2), (C, 1, 2))), A, NOW) for _ in range(2)]
    for state in states:
        told = after.beaten(state, (B,), 45.0, NOW + 1, 0.5)
        seen = after.looked(told, demand((A, 2, 3), (B, 2, 2), (C, 1, 2)), NOW + 2, 60.0)
        assert next_action(seen, NOW + 2) == Stay(A)


def test_a_withdrawal_that_the_site_has_not_heard_of_decides_nothing() -> None:
    state = replace(after.withdrawn(crowded(TOO_MANY_A), A, NOW), times=times(site_s=NOW + 5))
    assert next_action(state, NOW) is None
    assert state.move == Move(A, NOW, is_withdrawn=True)
