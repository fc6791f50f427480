"""A smoke run of `bench_generate`. It fails by itself when sharded tokens differ or a worker was left out."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.bench_generate import ratio
from benchmarks.shape.generate_decode import ROOT

pytestmark = pytest.mark.long


def test_quick_run_prints_the_named_keys() -> None:
    command = [sys.executable, "-m", "benchmarks.bench_generate", "--json", "--quick"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    (line,) = run.stdout.splitlines()
    figures = json.loads(line)
    assert set(figures) == {"tok_s", "ratio", "threads", "machine", "commit"}
    assert set(figures["tok_s"]) == {"in_process", "sharded", "llamacpp", "llamacpp_repacked"}
    assert set(figures["ratio"]) == {
        "sharded/in_process",
        "in_process/llamacpp",
        "in_process/llamacpp_repacked",
    }
    for by_batch in (*figures["tok_s"].values(), *figures["ratio"].values()):
        assert set(by_batch) == {"1", "32"}
        assert all(value > 0 for value in by_batch.values())


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    assert ratio({"one": [10.0, 1.0, 30.0], "other": [5.0, 10.0, 10.0]}, "one", "other") == 2.0
