"""The second phase: what was promised, or was held before a restart, is fetched while all else goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvasir.worker.agent import plan_changes as after
from kvasir.worker.agent.fetch import Fetched, Outcome
from kvasir.worker.agent.plan import next_action
from kvasir.worker.agent.plan_actions import Beat, Fetch
from kvasir.worker.agent.plan_state import Piece, WorkerState
from tests.unit.worker_states import MODEL, NOW, ROOM, A, B, C, at_rest, new_node, piece, promise, times


def filling(*pieces: Piece) -> WorkerState:
    return replace(new_node(), model=MODEL, pieces=pieces, times=times())


def test_promises_are_fetched_one_after_the_other() -> None:
    state = filling(promise(C), promise(A))
    assert next_action(state, NOW) == Fetch(promise(C))
    assert next_action(replace(state, is_fetching=True), NOW) is None


def test_what_a_worker_held_before_a_restart_comes_before_anything_new() -> None:
    state = replace(filling(piece(A, is_fetched=False)), times=times(volunteer_s=0))
    assert next_action(state, NOW) == Fetch(piece(A, is_fetched=False))


def test_nobody_fetches_without_a_token() -> None:
    state = WorkerState(ROOM, model=MODEL, pieces=(promise(A),), times=times(site_s=NOW + 1))
    assert next_action(state, NOW) is None


def test_heartbeats_keep_promises_alive_under_a_download() -> None:
    state = replace(filling(promise(A, "1" * 16), promise(B, "2" * 16)), is_fetching=True)
    assert next_action(replace(state, times=times(heartbeat_s=NOW)), NOW) == Beat((), ("1" * 16, "2" * 16))


def test_a_piece_that_came_is_marked_and_may_wait_for_others_only_so_long() -> None:
    state = after.fetched(filling(promise(A), promise(B)), Fetched(promise(A), Outcome.FETCHED), NOW, 0.5)
    assert state.fetched == (A,)
    assert state.serve_by_s == NOW + after.SERVE_WITHIN_S
    later = after.fetched(state, Fetched(promise(B), Outcome.FETCHED), NOW + 5, 0.5)
    assert (later.fetched, later.serve_by_s) == ((A, B), NOW + after.SERVE_WITHIN_S)


def test_a_failure_that_may_pass_is_waited_out() -> None:
    state = after.fetched(filling(promise(A)), Fetched(promise(A), Outcome.AGAIN, "cut"), NOW, 0.5)
    assert state.unfetched == (promise(A),)
    assert next_action(state, NOW) is None
    assert next_action(state, state.times.fetch_s) == Fetch(promise(A))


@pytest.mark.parametrize(
    ("outcome", "wait_s"),
    [(Outcome.HOPELESS, after.HOPELESS_RETRY_S), (Outcome.NO_ROOM, after.NO_ROOM_RETRY_S)],
)
def test_a_failure_for_good_gives_the_piece_up_and_asks_for_others_later(outcome: Outcome, wait_s: float) -> None:
    state = at_rest(A, pieces=(piece(A), promise(B)), is_fetching=True)
    state = after.fetched(state, Fetched(promise(B), outcome, "refused"), NOW, 0.5)
    assert state.pieces == (piece(A),)
    assert state.times.volunteer_s == NOW + wait_s


def test_a_piece_that_was_given_up_meanwhile_does_not_come_back() -> None:
    state = after.fetched(at_rest(A, is_fetching=True), Fetched(promise(B), Outcome.FETCHED), NOW, 0.5)
    assert (state.pieces, state.is_fetching) == ((piece(A),), False)
