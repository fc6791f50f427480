"""The supervisor's decisions, by a clock that the test moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_site.supervisor.policy import (
    FIRST_DELAY_S,
    FORGIVEN_AFTER_S,
    LOGS_SHOWN,
    LONGEST_DELAY_S,
    Action,
    Ask,
    ChildPlan,
    GiveUp,
    Kill,
    Phase,
    Say,
    Start,
    Supervision,
    delay_after,
)

STORE = ChildPlan("store", stop_stage=2, start_deadline_s=10)
WEB = ChildPlan("web", needs=("store",), stop_stage=1, stop_deadline_s=5)
FIRST = ChildPlan("first", needs=("web",))
SECOND = ChildPlan("second", needs=("web",))


def up() -> Supervision:
    """All four are ready at second 3."""
    service = Supervision([STORE, WEB, FIRST, SECOND])
    for now, names in ((0.0, ["store"]), (1.0, ["web"]), (2.0, ["first", "second"])):
        assert service.tick(now) == [Start(name) for name in names]
        for name in names:
            service.became_ready(name, now + 1)
    assert service.is_up
    return service


def said(actions: list[Action]) -> str:
    return "\n".join(action.text for action in actions if isinstance(action, Say))


def test_a_child_waits_for_those_that_it_needs() -> None:
    service = Supervision([WEB, STORE])
    assert service.tick(0.0) == [Start("store")]
    assert service.tick(0.1) == []
    assert said(service.became_ready("store", 1.5)) == "store is ready (1.5 s)"
    assert service.tick(1.6) == [Start("web")]
    assert not service.is_up


def test_a_child_that_cannot_start_fails_the_service() -> None:
    service = Supervision([STORE, WEB])
    service.tick(0.0)
    assert service.ended("store", "exit code 3", 0.2) == [GiveUp("store", "store could not start: exit code 3")]
    assert service.tick(100.0) == []


def test_a_child_that_is_not_ready_in_time_is_ended_once() -> None:
    service = Supervision([STORE])
    service.tick(0.0)
    assert service.tick(9.9) == []
    assert service.tick(10.0) == [Say("store was not ready within 10 s"), Kill("store")]
    assert service.tick(10.1) == []
    assert isinstance(service.ended("store", "killed by SIGKILL", 10.2)[0], GiveUp)


def test_a_child_that_dies_is_named_and_started_again() -> None:
    service = up()
    actions = service.ended("first", "killed by SIGKILL", 10.0)
    assert actions == [Say("first ended (killed by SIGKILL); it is started again in 0.5 s")]
    assert service.tick(10.4) == []
    assert service.tick(10.5) == [Start("first")]
    assert said(service.became_ready("first", 11.0)) == "first is ready again (0.5 s)"
    assert service.is_up


def test_nobody_else_is_restarted() -> None:
    service = up()
    service.ended("store", "killed by SIGKILL", 10.0)
    assert service.tick(10.5) == [Start("store")]
    assert {service.phase_of(name) for name in ("web", "first", "second")} == {Phase.READY}


def test_short_lives_are_spaced_out_and_a_long_one_is_forgiven() -> None:
    service, now, delays = up(), 10.0, []
    for _ in range(7):
        service.ended("web", "exit code 1", now)
        delay = next(d / 10 for d in range(1000) if service.tick(now + d / 10))
        delays.append(delay)
        now += delay
        service.became_ready("web", now)
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    actions = service.ended("web", "exit code 1", now + FORGIVEN_AFTER_S)
    assert "again in 0.5 s" in said(actions)


def test_failed_restarts_show_the_log_a_few_times_and_go_on() -> None:
    service, now, shown = up(), 10.0, []
    service.ended("web", "killed by SIGKILL", now)
    for _ in range(LOGS_SHOWN + 2):
        now += LONGEST_DELAY_S
        assert service.tick(now) == [Start("web")]
        (action,) = service.ended("web", "exit code 1", now)
        assert isinstance(action, Say)
        assert "web could not start (exit code 1)" in action.text
        shown.append(action.log_of)
    assert shown == ["web"] * LOGS_SHOWN + ["", ""]


def test_stages_stop_one_after_the_other() -> None:
    service = up()
    assert service.stop(20.0) == [Ask("first"), Ask("second")]
    assert service.tick(21.0) == []
    service.ended("second", "exit code 0", 21.0)
    assert service.tick(21.1) == []
    service.ended("first", "exit code 0", 22.0)
    assert service.tick(22.0) == [Ask("web")]
    service.ended("web", "exit code 0", 23.0)
    assert service.tick(23.0) == [Ask("store")]
    assert not service.has_ended
    service.ended("store", "exit code 0", 24.0)
    assert service.has_ended


def test_one_that_does_not_end_is_killed_at_its_deadline() -> None:
    service = Supervision([WEB, STORE])
    service.tick(0.0)
    service.became_ready("store", 1.0)
    service.tick(1.0)
    assert service.stop(2.0) == [Ask("web")]
    assert service.tick(6.9) == []
    assert service.tick(7.0) == [Say("web did not end within 5 s"), Kill("web")]
    assert service.tick(8.0) == []
    service.ended("web", "killed by SIGKILL", 8.1)
    assert service.tick(8.1) == [Ask("store")]


def test_a_second_stop_ends_everything_at_once() -> None:
    service = up()
    service.stop(20.0)
    service.ended("first", "exit code 0", 20.5)
    assert service.stop(21.0) == [Kill("store"), Kill("web"), Kill("second")]


def test_nothing_is_started_once_the_stop_has_begun() -> None:
    service = up()
    service.ended("first", "exit code 1", 10.0)
    service.stop(10.1)
    assert service.phase_of("first") is Phase.ENDED
    service.ended("second", "exit code 0", 10.2)
    assert service.tick(20.0) == [Ask("web")]


def test_a_stop_while_starting_ends_what_has_started() -> None:
    service = Supervision([STORE, WEB])
    service.tick(0.0)
    assert service.stop(1.0) == [Ask("store")]
    service.ended("store", "killed by SIGTERM", 1.1)
    assert service.has_ended


def test_plans_must_make_sense() -> None:
    with pytest.raises(ValueError, match="same name"):
        Supervision([STORE, STORE])
    with pytest.raises(ValueError, match="web needs store, which is no child"):
        Supervision([WEB])


@given(st.integers(0, 10_000))
def test_delays_grow_and_are_bounded(n_short_lives: int) -> None:
    assert FIRST_DELAY_S <= delay_after(n_short_lives) <= delay_after(n_short_lives + 1) <= LONGEST_DELAY_S
