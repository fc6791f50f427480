"""The first phase of a worker's life: it becomes a node, keeps its token fresh, and volunteers until it has no room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvasir.experts import ExpertRange
from kvasir.slicing.expert_ranges import merge_ranges
from kvasir.worker.agent import plan_changes as after
from kvasir.worker.agent.market_client import Assigned, NothingWanted
from kvasir.worker.agent.plan import LONGEST_WAIT_S, UNFETCHED_MOST, next_action, wait_s
from kvasir.worker.agent.plan_actions import Register, Rotate, Volunteer
from kvasir.worker.agent.plan_state import WorkerState
from tests.unit.worker_states import LATER, MODEL, NOW, ROOM, A, B, C, at_rest, new_node, piece, promise, times

FULL, NO_FIT, AT_TARGET = (
    "the budget is full",
    "nothing that is wanted fits into the budget",
    "expert coverage at target",
)


def offer(item: ExpertRange) -> Assigned:
    return Assigned(MODEL, item, 400, "kx1", 1.0, 2000, "wss://relay.test/relay", "c" * 16)


def test_a_stranger_registers_before_all_else() -> None:
    assert next_action(WorkerState(ROOM), NOW) == Register()
    assert next_action(WorkerState(ROOM, pieces=(promise(A),)), NOW) == Register()


def test_a_site_that_is_away_is_left_alone() -> None:
    state = WorkerState(ROOM, times=times(site_s=NOW + 7))
    assert next_action(state, NOW) is None
    assert wait_s(state, NOW) == 7
    assert next_action(state, NOW + 7) == Register()
    assert next_action(replace(new_node(), times=times(site_s=NOW + 7, volunteer_s=0)), NOW) is None


def test_a_token_is_exchanged_in_time_but_not_under_a_download() -> None:
    state = at_rest(A, times=times(rotate_s=NOW))
    assert next_action(state, NOW - 1) is None
    assert next_action(state, NOW) == Rotate()
    assert next_action(replace(state, is_fetching=True), NOW) is None


def test_a_new_node_volunteers_with_all_its_room() -> None:
    assert next_action(new_node(), NOW) == Volunteer(ROOM, ())


def test_what_is_held_and_what_is_promised_is_stated_merged() -> None:
    state = replace(new_node(), model=MODEL, pieces=(piece(C), piece(A), promise(B)), is_fetching=True)
    state = replace(state, times=times(volunteer_s=0, serve_s=LATER))
    assert next_action(state, NOW) == Volunteer(ROOM, merge_ranges([A, B, C]))


def test_so_many_promises_at_a_time_and_no_more() -> None:
    pieces = tuple(promise(ExpertRange(layer, 0, 1)) for layer in range(UNFETCHED_MOST))
    state = replace(new_node(), model=MODEL, is_fetching=True, times=times(volunteer_s=0))
    assert isinstance(next_action(replace(state, pieces=pieces[:-1]), NOW), Volunteer)
    assert next_action(replace(state, pieces=pieces), NOW) is None


def test_a_promise_is_kept_with_its_lease() -> None:
    state = after.promised(new_node(), offer(A), NOW)
    assert (state.model, [item.range for item in state.unfetched]) == (MODEL, [A])
    assert state.pieces[0].lease_id == "c" * 16


def test_an_offer_of_what_is_held_is_passed_over_for_a_moment() -> None:
    state = after.promised(at_rest(A), offer(ExpertRange(0, 3, 5)), NOW)
    assert state.pieces == (piece(A),)
    assert state.times.volunteer_s == NOW + after.HELD_ALREADY_RETRY_S


@pytest.mark.parametrize(("reason", "is_crowded"), [(FULL, True), (NO_FIT, True), (AT_TARGET, False)])
def test_when_nothing_is_wanted_it_asks_again_when_the_market_says(reason: str, is_crowded: bool) -> None:
    state = after.not_wanted(at_rest(A, times=times(volunteer_s=0)), NothingWanted(reason, "", 21.5), NOW)
    assert state.is_crowded is is_crowded
    state = replace(state, times=replace(state.times, look_s=LATER))
    assert next_action(state, NOW + 21.4) is None
    assert wait_s(state, NOW) == 21.5
    assert isinstance(next_action(state, NOW + 21.5), Volunteer)


def test_waits_are_bounded() -> None:
    assert wait_s(at_rest(A), NOW) == LONGEST_WAIT_S
