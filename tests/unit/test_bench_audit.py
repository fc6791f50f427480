"""The benchmark of audits simulates what the formula says, and its keys are those that are published."""

from __future__ import annotations

import pytest

from backbone.engine.trust.standing import TrustPolicy
from benchmarks.audit.simulated import Detection, simulate
from benchmarks.audit.swarm import LyingRun
from benchmarks.bench_audit import ShareFigures, as_keys, as_table

pytestmark = pytest.mark.long

HONEST = LyingRun(0, frozenset(), frozenset(), 10, 0, False, None)
CAUGHT = LyingRun(3, frozenset("ab"), frozenset("abc"), 90, 4, True, 80)
FIGURES = {0.01: ShareFigures(Detection(50.0, 60.25, 200, 6400.0), CAUGHT, HONEST, HONEST)}
COSTS = {"default": {1: 0.251, 8: 0.3}, "strict": {1: 8.0, 8: 15.0}}


def test_with_a_constant_share_the_mean_is_the_formulas() -> None:
    policy = TrustPolicy(first_share=1 / 16, least_share=1 / 16)
    found = simulate(0.1, 1500, policy, seed=2)
    assert found.mean == pytest.approx(1 / (0.1 * (1 / 16)), rel=0.1)
    assert found.median < found.mean < found.worst


def test_a_falling_share_finds_lies_later() -> None:
    falling, constant = TrustPolicy(), TrustPolicy(least_share=1 / 16)
    assert simulate(0.002, 60, falling, seed=2).mean > simulate(0.002, 60, constant, seed=2).mean


def test_flags_are_complete_only_when_they_hold_every_affected_request() -> None:
    assert CAUGHT.are_all_flagged is True
    assert LyingRun(3, frozenset("ab"), frozenset("a"), 90, 4, True, 80).are_all_flagged is False
    assert HONEST.are_all_flagged is None


def test_the_published_keys() -> None:
    keys = as_keys(FIGURES, COSTS)
    assert keys["machine"] and keys["commit"]
    figures = keys["lie_shares"]["0.01"]
    assert (figures["detected_after_replies"], figures["wrong_tokens_strict"]) == (50.0, 0)
    assert (figures["affected_requests_default"], figures["all_affected_flagged"]) == (2, True)
    assert keys["audit_cost_pct"] == {"default": 0.3, "strict": 15.0}
    assert "goal ≤ 2 %" in as_table(FIGURES, COSTS)
