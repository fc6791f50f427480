"""States of edges, links and sessions: what may follow what, for every sequence."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.edge.states import FOLLOWERS, EdgeState, LinkState, SessionState, State

KINDS: tuple[type[State], ...] = (EdgeState, LinkState, SessionState)
HALF_OPEN = {
    EdgeState.GOING_AWAY,
    EdgeState.CLOSING,
    LinkState.CLOSING,
    SessionState.GOING_AWAY,
    SessionState.PARTING,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_state_is_in_the_table_and_only_states_of_its_kind_follow(kind: type[State]) -> None:
    for state in kind:
        assert all(type(follower) is kind for follower in FOLLOWERS[state])


@pytest.mark.parametrize("kind", KINDS)
def test_states_only_go_forward_and_all_can_close(kind: type[State]) -> None:
    order = list(kind)
    for state in order[:-1]:
        assert all(order.index(follower) > order.index(state) for follower in FOLLOWERS[state])
        assert order[-1] in FOLLOWERS[state]
    assert order[-1].name == "CLOSED"
    assert not FOLLOWERS[order[-1]]


def test_half_open_states_follow_open_ones_alone() -> None:
    assert EdgeState.GOING_AWAY not in FOLLOWERS[EdgeState.HANDSHAKE]
    assert SessionState.PARTING not in FOLLOWERS[SessionState.CONNECTING]
    for state in HALF_OPEN:
        assert FOLLOWERS[state]
        assert not any(follower.name in {"OPEN", "JOINED"} for follower in FOLLOWERS[state])


@given(st.sampled_from(KINDS).flatmap(lambda kind: st.lists(st.sampled_from(list(kind)), min_size=1)))
def test_any_sequence_passes_or_raises_as_the_table_has_it(wanted: list[State]) -> None:
    state = next(iter(type(wanted[0])))
    for following in wanted:
        if following in FOLLOWERS[state]:
            state = state.to(following, "edge 7")
            assert state is following
        else:
            with pytest.raises(RuntimeError, match=f"edge 7 cannot go from {state.name} to {following.name}"):
                state.to(following, "edge 7")


def test_a_transition_is_logged_with_the_name_of_what_changed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "kvasir.edge.states"):
        EdgeState.HANDSHAKE.to(EdgeState.OPEN, "bridge 7")
    assert caplog.messages == ["bridge 7: HANDSHAKE -> OPEN"]
