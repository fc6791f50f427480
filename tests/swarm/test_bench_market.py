"""The benchmarks of the market and of slices publish the keys that they promise; the market keeps its word in them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.bench_exact import ROOT
from benchmarks.bench_slices import Figures, as_keys

pytestmark = pytest.mark.long


def test_bench_market() -> None:
    command = [sys.executable, "-m", "benchmarks.bench_market", "--json", "--quick"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    (line,) = run.stdout.splitlines()
    figures = json.loads(line)
    assert set(figures) == {
        "demand_ms", "demand_changed_ms", "heartbeats_per_s", "volunteers_per_s", "double_leases", "heal_s",
        "replica_imbalance", "reference", "machine", "commit",
    }  # fmt: skip
    assert figures["demand_ms"] > 0
    for name in ("heartbeats_per_s", "volunteers_per_s"):
        assert set(figures[name]) == {"http", "bare"}
        assert min(figures[name].values()) > 0
    assert figures["double_leases"] == 0
    assert figures["reference"]["double_leases_dict"] > 0  # who promises nothing gives the same gap to many
    heal_s = figures["heal_s"]
    assert heal_s["in_all"] <= 2 * heal_s["lease"] + heal_s["download"]
    assert figures["replica_imbalance"] >= 1


def test_bench_slices() -> None:
    figures = as_keys(Figures([100.0, 300.0, 200.0], [100.0, 200.0, 400.0], 0.1, 0.2, 60.0, 70.04))
    assert figures.pop("machine") and figures.pop("commit")
    assert figures == {"mb_s": 200.0, "ratio_vs_nginx": 1.0, "rss_mb": 70.0}
