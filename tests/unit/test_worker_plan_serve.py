"""The third phase: what was fetched is served and stated, and stays so while site or relay are away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvasir.slicing.expert_ranges import merge_ranges
from kvasir.worker.agent import plan_changes as after
from kvasir.worker.agent.plan import GRACE_S, is_settled, next_action, to_state, wait_s
from kvasir.worker.agent.plan_actions import Beat, Fetch, Serve, Volunteer
from tests.unit.worker_states import LATER, NOW, A, B, C, at_rest, piece, promise, times


def test_what_was_fetched_is_served_at_once_when_nothing_more_comes() -> None:
    assert next_action(at_rest(A, pieces=(piece(A), piece(C))), NOW) == Serve((A, C))


@pytest.mark.parametrize("reason", ["promise", "volunteer"])
def test_what_was_fetched_waits_for_what_is_on_its_way_but_not_long(reason: str) -> None:
    state = at_rest(A, pieces=(piece(A), piece(C)), serve_by_s=NOW + 10, is_fetching=True)
    if reason == "promise":
        state = replace(state, pieces=(*state.pieces, promise(B)))
    else:
        state = replace(state, times=times(volunteer_s=0))
    assert next_action(state, NOW) == (
        None if reason == "promise" else Volunteer(state.room_bytes, merge_ranges([A, C]))
    )
    assert next_action(state, NOW + 10) == Serve((A, C))


def test_who_holds_nothing_more_is_at_no_relay() -> None:
    state = after.served(at_rest(A, pieces=()), ())
    assert (state.served, state.is_joined) == ((), False)
    assert after.served(at_rest(A), (A,)).is_joined


def test_a_heartbeat_that_states_nothing_keeps_no_promise() -> None:
    state = at_rest(A, pieces=(piece(A, lease="1" * 16),))
    assert [item.lease_id for item in after.beaten(state, (), 45.0, NOW, 0.5).pieces] == ["1" * 16]


def test_what_was_given_up_is_served_no_longer_whatever_comes() -> None:
    state = at_rest(A, C, pieces=(piece(A), promise(B)), is_fetching=True)
    assert next_action(state, NOW) == Serve((A,))
    assert next_action(replace(state, pieces=()), NOW) == Serve(())


def test_edges_that_could_not_be_opened_wait() -> None:
    state = at_rest(A, pieces=(piece(A), piece(C)), times=times(serve_s=NOW + 5))
    assert next_action(state, NOW) is None
    assert next_action(state, NOW + 5) == Serve((A, C))


def test_a_change_is_stated_at_once_and_keeps_the_promise() -> None:
    state = at_rest(A, pieces=(piece(A, lease="1" * 16), promise(C, "2" * 16)), stated=(), is_fetching=True)
    assert next_action(state, NOW) == Beat((A,), ("1" * 16, "2" * 16))
    told = after.beaten(state, (A,), 45.0, NOW, 0.5)
    assert [item.lease_id for item in told.pieces] == ["", "2" * 16]
    assert told.stated == (A,)


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
def test_heartbeats_come_three_times_a_lease_or_sooner(jitter: float) -> None:
    state = after.beaten(at_rest(A), (A,), 45.0, NOW, jitter)
    assert NOW + 10 < state.times.heartbeat_s <= NOW + 15
    assert next_action(state, NOW + 10) is None
    assert next_action(state, NOW + 15) == Beat((A,), ())


def test_a_worker_with_nothing_to_say_says_nothing() -> None:
    assert next_action(at_rest(times=times(heartbeat_s=0)), NOW) is None


def test_a_relay_that_is_away_for_a_moment_changes_nothing() -> None:
    state = after.relay_changed(at_rest(A), is_joined=False, now=NOW)
    assert next_action(state, NOW + GRACE_S - 1) is None
    assert wait_s(state, NOW) == GRACE_S
    assert next_action(state, NOW + GRACE_S) == Beat((), ())
    back = after.relay_changed(after.beaten(state, (), 45.0, NOW + 20, 0.5), is_joined=True, now=NOW + 30)
    assert next_action(back, NOW + 30) == Beat((A,), ())


def test_nothing_is_stated_before_the_relay_was_ever_reached() -> None:
    state = at_rest(A, is_joined=False, stated=())
    assert to_state(state, NOW) == ()


def test_a_site_that_is_away_does_not_end_serving() -> None:
    state = at_rest(A, stated=(), times=times(site_s=LATER, volunteer_s=0, heartbeat_s=0))
    assert next_action(state, NOW) is None
    more = replace(state, pieces=(piece(A), piece(C)))
    assert next_action(more, NOW) == Serve((A, C))
    assert next_action(replace(state, pieces=(piece(A), promise(C))), NOW) == Fetch(promise(C))


def test_settled_is_who_serves_and_states_all_and_was_offered_no_more() -> None:
    state = at_rest(A, C)
    assert is_settled(state, NOW)
    all_changes: tuple[dict[str, Any], ...] = (
        {"times": times(volunteer_s=0)},
        {"pieces": (piece(A), piece(C), promise(B))},
        {"is_joined": False},
        {"stated": (A,)},
        {"served": (A,)},
    )
    for changes in all_changes:
        assert not is_settled(replace(state, **changes), NOW)
    assert not is_settled(at_rest(), NOW)


def test_another_model_means_to_begin_anew() -> None:
    state = after.forgotten(at_rest(A, C, is_crowded=True, is_fetching=True))
    assert (state.model, state.pieces, state.served, state.is_crowded, state.is_fetching) == (
        None,
        (),
        (),
        False,
        False,
    )
    assert state.node_id == "node"
