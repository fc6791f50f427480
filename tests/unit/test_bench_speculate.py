"""The benchmark of drafts publishes the keys that it promises."""

from __future__ import annotations

import pytest

from benchmarks.bench_speculate import FIGURES, ROUND_TRIPS_MS, TEXTS
from benchmarks.speculate.mtp import MTP_FIGURES, RIGHT_SHARES
from tests.unit.test_bench_keys import quick_run

pytestmark = pytest.mark.long


def test_bench_speculate() -> None:
    figures = quick_run("bench_speculate")
    assert figures.pop("commit")
    assert figures.pop("identical") is True
    assert all(value > 0 for value in figures.pop("undo_ms_122b").values())
    head_ms = figures.pop("head_ms_122b")
    assert list(head_ms) == ["guess", "follow", "step", "share"]
    assert all(list(by_rows) == ["1", "8"] and min(by_rows.values()) > 0 for by_rows in head_ms.values())
    for name in MTP_FIGURES:
        by_share = figures.pop(name)
        assert list(by_share) == [str(share) for share in RIGHT_SHARES]
        for by_round_trip in by_share.values():
            assert list(by_round_trip) == [str(ms) for ms in ROUND_TRIPS_MS]
            assert all(list(by_batch) == ["1", "2"] for by_batch in by_round_trip.values())
            assert all(value > 0 for by_batch in by_round_trip.values() for value in by_batch.values())
    assert figures.keys() == FIGURES.keys()
    for name, by_text in figures.items():
        assert set(by_text) == set(TEXTS)
        for by_round_trip in by_text.values():
            assert list(by_round_trip) == [str(ms) for ms in ROUND_TRIPS_MS]
            for by_batch in by_round_trip.values():
                assert list(by_batch) == ["1", "2"]
                assert all(value > 0 or name == "accepted_share" for value in by_batch.values())
