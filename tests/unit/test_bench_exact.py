"""A smoke run of `bench_exact`: its keys, and the facts that do not depend on how much is measured."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.bench_exact import ROOT
from benchmarks.exact.demo import cut_windows, read

pytestmark = pytest.mark.long

ARCH_KEYS = {
    "max_abs_llamacpp",
    "max_abs_by_path",
    "greedy_equal",
    "f64_decode",
    "kx1_rel_err",
    "llamacpp_rel_err",
    "sharded_identical",
}


def test_quick_run_prints_the_named_keys_and_holds_what_is_promised() -> None:
    command = [sys.executable, "-m", "benchmarks.bench_exact", "--json", "--quick"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    (line,) = run.stdout.splitlines()
    figures = json.loads(line)
    assert set(figures) == {
        "archs",
        "demo_ppl_ours",
        "demo_ppl_llamacpp",
        "demo_ppl_float",
        "demo_greedy_agree",
        "demo_greedy_agree_with_float",
        "machine",
        "commit",
    }
    for architecture in figures["archs"].values():
        assert set(architecture) == ARCH_KEYS
        assert 0 < architecture["max_abs_llamacpp"] <= 2e-5
        assert architecture["max_abs_llamacpp"] == max(architecture["max_abs_by_path"].values())
        assert architecture["greedy_equal"]
        assert architecture["f64_decode"] <= 1e-12
        for quantised, error in architecture["kx1_rel_err"].items():
            assert error <= architecture["llamacpp_rel_err"][quantised]
        assert architecture["sharded_identical"]
    assert abs(figures["demo_ppl_ours"] / figures["demo_ppl_llamacpp"] - 1) <= 0.005
    assert figures["demo_greedy_agree"] > 0.95


def test_perplexity_scores_every_token_of_a_window_but_its_first() -> None:
    def sure_of_successors(window: list[int]) -> np.ndarray:
        logits = np.full((len(window), 300), -1e9, np.float32)
        logits[np.arange(len(window)), [token + 1 for token in window]] = 0.0
        logits[:, 299] = 0.0  # one rival: each right token has probability one half
        return logits

    windows = cut_windows(range(256 + 200))
    assert windows == [list(range(256))]
    reading = read(windows, sure_of_successors)
    assert reading.perplexity == 2.0
    assert reading.greedy.tolist() == list(range(1, 256))
