"""A worker that fails is left out for a time that doubles, and comes back by itself."""

from __future__ import annotations

from backbone.engine.swarm.worker_health import (
    FIRST_PENALTY_S,
    FIRST_REDIAL_S,
    LONGEST_PENALTY_S,
    LONGEST_REDIAL_S,
    Health,
    redial_delay_s,
)


def test_a_new_worker_is_live() -> None:
    assert Health().is_live(0.0)


def test_a_failure_leaves_it_out_until_the_penalty_is_over() -> None:
    health = Health().after_failure(10.0, "late")
    assert not health.is_live(10.0 + FIRST_PENALTY_S - 0.001)
    assert health.is_live(10.0 + FIRST_PENALTY_S)
    assert health.last_reason == "late"


def test_failures_reported_together_count_once() -> None:
    once = Health().after_failure(10.0, "late")
    assert once.after_failure(10.0, "late").left_out_until == once.left_out_until


def test_the_penalty_doubles_up_to_a_bound_and_halves_with_success() -> None:
    health, now = Health(), 0.0
    for _ in range(12):
        health = health.after_failure(now, "late")
        now = health.left_out_until
    assert health.penalty_s == LONGEST_PENALTY_S
    assert health.after_success().penalty_s == LONGEST_PENALTY_S / 2
    for _ in range(12):
        health = health.after_success()
    assert health.penalty_s == FIRST_PENALTY_S


def test_redials_double_up_to_a_bound_and_are_spread() -> None:
    assert redial_delay_s(0, 0.0) == FIRST_REDIAL_S
    assert redial_delay_s(1, 0.0) == 2 * FIRST_REDIAL_S
    assert redial_delay_s(1000, 0.0) == LONGEST_REDIAL_S
    assert LONGEST_REDIAL_S / 2 < redial_delay_s(1000, 0.999) < LONGEST_REDIAL_S
