"""Targets follow traffic, within their bounds, and never flap; the traffic codec takes back what it wrote."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.errors import ConfigError, WireError
from market.coverage.targets import (
    HALF_LIFE_S,
    MARGIN,
    first_targets,
    ideal_replicas,
    next_targets,
    smoothed,
)
from market.coverage.traffic import (
    FRESH_S,
    METER_HALF_LIFE_S,
    Traffic,
    TrafficMeter,
    pack_traffic,
    total_traffic,
    unpack_traffic,
)
from market.settings import TargetBounds

BOUNDS = TargetBounds(2, 6)
DENSE_FIRST = np.array([False, True])


def busy(expert: int, rows_s: float, quiet_s: float = 100.0) -> Traffic:
    """Two layers of 8 experts; one of layer 1 is called so often, the others `quiet_s`."""
    traffic = np.full((2, 8), quiet_s, np.float32)
    traffic[0] = 0
    traffic[1, expert] = rows_s
    return traffic


def test_it_works() -> None:
    before = first_targets(DENSE_FIRST, 8, BOUNDS)
    assert before.tolist() == [[0] * 8, [2] * 8]
    after = next_targets(before, busy(3, 300.0), BOUNDS)
    assert after[1, 3] > 2
    assert set(np.delete(after[1], 3)) == {2}
    assert set(after[0]) == {0}  # a layer without experts has no targets with any traffic


def test_without_traffic_nothing_moves() -> None:
    before = first_targets(DENSE_FIRST, 8, BOUNDS)
    assert (next_targets(before, np.zeros((2, 8), np.float32), BOUNDS) == before).all()
    assert (next_targets(before, busy(1, 0.3, 0.0), BOUNDS) == before).all()  # a row now and then is noise


def test_a_busy_expert_stops_at_the_bound_and_comes_back_when_it_is_over() -> None:
    before = first_targets(DENSE_FIRST, 8, BOUNDS)
    at_most = next_targets(before, busy(3, 1e6), BOUNDS)
    assert at_most[1, 3] == 6
    assert (next_targets(at_most, busy(3, 100.0), BOUNDS) == before).all()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(0, 5000), min_size=1, max_size=30), st.integers(0, 2**32 - 1))
def test_targets_stay_within_bounds_whatever_comes(rows: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    targets = first_targets(DENSE_FIRST, 8, BOUNDS)
    for value in rows:
        targets = next_targets(targets, busy(int(rng.integers(8)), value, float(rng.uniform(0, 50))), BOUNDS)
        assert ((targets[1] >= 2) & (targets[1] <= 6)).all()
        assert (targets[0] == 0).all()


@settings(max_examples=80, deadline=None)
@given(st.floats(1.0, 8.0), st.lists(st.floats(-1, 1), min_size=2, max_size=40), st.integers(2, 6))
def test_an_ideal_that_swings_less_than_the_margins_never_flaps(load: float, swings: list[float], first: int) -> None:
    targets = first_targets(DENSE_FIRST, 8, BOUNDS)
    targets[1, 0] = first
    seen = []
    for swing in swings:
        traffic = traffic_with_ideal(load + swing * MARGIN * 0.98)
        targets = next_targets(targets, traffic, BOUNDS)
        seen.append(int(targets[1, 0]))
    moves = [b - a for a, b in pairwise(seen) if b != a]
    assert all(a * b > 0 for a, b in pairwise(moves)), seen  # it may settle, never turn back


def traffic_with_ideal(ideal: float) -> Traffic:
    """Traffic in which expert 0 of layer 1 has this ideal."""
    share = ideal / (BOUNDS.fewest * 8)
    traffic = busy(0, 1e6 * share, 1e6 * (1 - share) / 7)
    assert ideal_replicas(traffic, BOUNDS)[1, 0] == pytest.approx(ideal, abs=1e-3)
    return traffic


def test_the_moving_average_has_its_half_life() -> None:
    zero, hundred = np.zeros((1, 2), np.float32), np.full((1, 2), 100, np.float32)
    assert smoothed(zero, hundred, HALF_LIFE_S)[0, 0] == pytest.approx(50)
    in_two = smoothed(smoothed(zero, hundred, 7.0), hundred, 13.0)
    assert in_two[0, 0] == pytest.approx(smoothed(zero, hundred, 20.0)[0, 0], rel=1e-5)
    assert (smoothed(zero, hundred, -5.0) == zero).all()  # a clock that went back


@pytest.mark.parametrize(("fewest", "most"), [(0, 2), (3, 2), (1, 1001)])
def test_bounds_that_cannot_be_are_errors(fewest: int, most: int) -> None:
    with pytest.raises(ConfigError, match="fewest <= most"):
        TargetBounds(fewest, most)


def test_the_codec_takes_back_what_it_wrote() -> None:
    traffic = np.arange(6, dtype=np.float32).reshape(2, 3)
    at_s, back = unpack_traffic(pack_traffic(traffic, 1234.5), 2, 3)
    assert at_s == 1234.5
    assert (back == traffic).all()
    assert len(pack_traffic(traffic, 0)) == 8 + 4 * 6


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_traffic_that_is_none_is_refused_both_ways(value: float) -> None:
    traffic = np.array([[value]], np.float32)
    with pytest.raises(WireError):
        pack_traffic(traffic, 0.0)
    with pytest.raises(WireError):
        unpack_traffic(bytes(8) + traffic.tobytes(), 1, 1)
    with pytest.raises(WireError, match="12 are needed"):
        unpack_traffic(bytes(11), 1, 1)


def test_the_total_counts_what_is_fresh_and_well_formed() -> None:
    one = np.ones((1, 2), np.float32)
    fields = [pack_traffic(one, 100.0), pack_traffic(2 * one, 100.0 - FRESH_S - 1), b"other", pack_traffic(one, 99.0)]
    assert total_traffic(fields, 1, 2, 101.0).tolist() == [[2.0, 2.0]]


def test_a_meter_turns_calls_into_rows_per_second() -> None:
    meter = TrafficMeter(1, 2)
    calls = np.array([[200, 0]])
    assert meter.update(calls * 5, METER_HALF_LIFE_S)[0].tolist() == [pytest.approx(50.0), 0.0]  # 100 a second, halfway
    for _ in range(200):
        meter.update(calls, 2.0)
    assert meter.traffic[0, 0] == pytest.approx(100.0, rel=1e-3)
