"""States of edges, links and sessions: what may follow what, for every sequence."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.edge.states import EdgeState, LinkState, SessionState, State

KINDS: tuple[type[State], ...] = (EdgeState, LinkState, SessionState)
HALF_OPEN: tuple[State, ...] = (
    EdgeState.GOING_AWAY, EdgeState.CLOSING, LinkState.CLOSING, SessionState.GOING_AWAY, SessionState.PARTING,
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_states_only_go_forward_and_all_can_close(kind: type[State]) -> None:
    order = [state.name for state in kind]
    assert order[-1] == "CLOSED"
    for at, state in enumerate(kind):
        assert set(state.value) <= set(order[at + 1 :])
        assert state.name == "CLOSED" or "CLOSED" in state.value


def test_half_open_states_follow_open_ones_alone() -> None:
    assert "GOING_AWAY" not in EdgeState.HANDSHAKE.value
    assert not {"GOING_AWAY", "PARTING"} & set(SessionState.CONNECTING.value)
    assert all(state.value and not {"OPEN", "JOINED"} & set(state.value) for state in HALF_OPEN)


@given(st.sampled_from(KINDS).flatmap(lambda kind: st.lists(st.sampled_from(list(kind)), min_size=1)))
def test_any_sequence_passes_or_raises_as_the_states_have_it(wanted: list[State]) -> None:
    state = next(iter(type(wanted[0])))
    for following in wanted:
        if following.name in state.value:
            state = state.to(following, "edge 7")
            assert state is following
        else:
            with pytest.raises(RuntimeError, match=f"edge 7 cannot go from {state.name} to {following.name}"):
                state.to(following, "edge 7")


def test_a_transition_is_logged_with_the_name_of_what_changed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "kvasir.edge.states"):
        EdgeState.HANDSHAKE.to(EdgeState.OPEN, "bridge 7")
    assert caplog.messages == ["bridge 7: HANDSHAKE -> OPEN"]
