"""When a WebSocket counts as dead, over every moment at which it may have died."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.edge.signs_of_life import LOOK_EVERY_S, KeepAliveAction, SignsOfLife


def looks(signs: SignsOfLife, start: float, until: float, n_unsent: int = 0) -> tuple[float | None, int]:
    """When it is given up, looking once a second from `start`; and how many pings were sent."""
    now, n_pings = start, 0
    while now < until:
        match signs.look(now, n_unsent, is_listening=True):
            case KeepAliveAction.GIVE_UP:
                return now, n_pings
            case KeepAliveAction.PING:
                n_pings += 1
        now += LOOK_EVERY_S
    return None, n_pings


@given(st.floats(0, 0.999), st.floats(0, 100))
def test_a_half_open_socket_is_found_within_ten_seconds(phase: float, died: float) -> None:
    signs = SignsOfLife(died)
    found, n_pings = looks(signs, died + phase, died + 60)
    assert found is not None
    assert found - died <= 10.0
    assert n_pings == 1


def test_pongs_keep_a_silent_socket_alive() -> None:
    signs = SignsOfLife(0.0)
    n_pings = 0
    for second in range(1, 1000):
        action = signs.look(float(second), 0, is_listening=True)
        assert action is not KeepAliveAction.GIVE_UP
        if action is KeepAliveAction.PING:
            n_pings += 1
            signs.heard = second + 0.5
    assert 200 <= n_pings <= 340


def test_a_buffer_that_drains_is_a_sign_of_life_and_one_that_stands_still_is_not() -> None:
    signs = SignsOfLife(0.0)
    for second in range(1, 100):
        assert signs.look(float(second), 10_000 - second, is_listening=True) is not KeepAliveAction.GIVE_UP
    found, _ = looks(signs, 100.0, 130.0, n_unsent=9901)
    assert found is not None
    assert found <= 110.0


@pytest.mark.parametrize("silent_for", [8.0, 50.0])
def test_who_does_not_listen_itself_blames_nobody(silent_for: float) -> None:
    signs = SignsOfLife(0.0)
    for second in range(1, int(silent_for)):
        assert signs.look(float(second), 0, is_listening=False) is KeepAliveAction.NOTHING
    assert signs.silent_s(silent_for) <= 1.0
