"""The benchmark of the hot cache publishes the keys that it promises."""

from __future__ import annotations

import pytest

from tests.unit.test_bench_keys import quick_run

pytestmark = pytest.mark.long

POLICIES = ("ours", "ours_for_trips", "lru", "best_fixed")


def test_bench_hot_cache() -> None:
    figures = quick_run("bench_hot_cache")
    assert set(figures) == {
        *(f"{figure}_{policy}" for figure in ("share", "trips_saved") for policy in POLICIES),
        "loads_per_token_lru", "loads_per_token_ours", "texts_identical", "tok_s_1", "tok_s_gain_1", "hot_share_1",
        "commit",
    }  # fmt: skip
    assert figures["texts_identical"] is True
    assert all(gain > 1 for gain in figures["tok_s_gain_1"].values())
    assert figures["share_best_fixed"]["1"] == figures["share_lru"]["1"] == 1
    for policy in POLICIES:
        assert list(figures[f"share_{policy}"]) == ["0.25", "1"]
