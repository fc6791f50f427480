"""The benchmark of the dense path's modes: its keys, and that it sees bits which depend on the batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from backbone.engine.ops import fast_ops
from backbone.engine.serving.loaded_model import Arithmetic, Dense, LoadedModel
from benchmarks.bench_fast import FULL, ratio
from benchmarks.shape.batch_dependence import batch_dependence
from benchmarks.shape.layout import QUICK as QUICK_SHAPE
from benchmarks.shape.model import write_real_shape
from tests.unit.test_bench_keys import quick_run


def test_bench_fast() -> None:
    figures = quick_run("bench_fast")
    ratios = {f"ratio_{mode}_{case}" for mode in ("fast", "copied", "float") for case in ("1", "8", "32", "pp64")}
    others = {"batch_invariant", "logit_change", "fast_mode", "copies_gb", "threads", "commit"}
    assert set(figures) == ratios | others
    assert all(figures[key] > 0 for key in ratios)
    assert figures["batch_invariant"]["exact"] is True and figures["logit_change"]["exact"] == 0
    assert set(figures["batch_invariant"]) == set(figures["logit_change"]) == {"exact", "fast", "copied", "float"}
    assert figures["fast_mode"].startswith("fast: ")
    assert set(FULL.names.values()) == {"1", "8", "32", "pp512"}


def test_a_batch_that_changes_bits_is_seen(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path: Path = write_real_shape(tmp_path_factory.mktemp("shape") / "model.gguf", QUICK_SHAPE)
    monkeypatch.setattr(fast_ops, "LEAST_WEIGHTS", 1)
    with LoadedModel.open(path, n_slot=8, n_ctx=64, n_threads=1) as exact:
        assert batch_dependence(exact, 8) == (True, 0.0)
    with LoadedModel.open(
        path, n_slot=8, n_ctx=64, n_threads=1, arithmetic=Arithmetic(Dense.FAST, fast_rows=16)
    ) as fast:
        found = batch_dependence(fast, 8)
    assert not found.is_invariant
    assert 0 < found.largest_change < 1


def test_a_ratio_is_of_one_round() -> None:
    costs = {"1": {"exact": [1.0, 2.0, 8.0], "fast": [2.0, 1.0, 8.0]}}
    assert ratio(costs, "1", "fast") == 1.0
