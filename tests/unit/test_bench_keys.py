"""The benchmarks of kernel, loading, relay and service publish the keys that they promise, each figure in its place."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.bench_relay import Measured
from benchmarks.bench_relay import as_keys as relay_keys
from benchmarks.bench_serve import Rounds, percentile
from benchmarks.bench_serve import as_keys as serve_keys
from benchmarks.serve.client import Stream


def quick_run(name: str) -> dict[str, Any]:
    """The one line that a smoke run prints; in this process, as a new one would import torch first."""
    main: Callable[[], None] = importlib.import_module(f"benchmarks.{name}").main
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [name, "--json", "--quick"])
        main()
    (line,) = printed.getvalue().splitlines()
    figures: dict[str, Any] = json.loads(line)
    assert figures.pop("machine") and figures["commit"]
    return figures


def test_bench_expert() -> None:
    figures = quick_run("bench_expert")
    del figures["commit"]
    assert set(figures) == {
        "us_per_expert_row", "speedup_vs_ggml", "rel_err", "min_cosine", "gb_s", "share_of_stream_bandwidth",
        "ratio_worker_vs_kernel",
    }  # fmt: skip
    for name, by_n in figures.items():
        assert list(by_n) == ["1", "8", "64", "512"]
        if name not in {"rel_err", "min_cosine"}:
            assert all(value > 0 for value in by_n.values())
    for n in figures["rel_err"]:
        assert 0 < figures["rel_err"][n]["ours"] <= figures["rel_err"][n]["ggml"] < 0.1
        assert 1 > figures["min_cosine"][n]["ours"] >= figures["min_cosine"][n]["ggml"] > 0.99


def test_bench_trace() -> None:
    figures = quick_run("bench_trace")
    del figures["commit"]
    assert set(figures) == {"ratio_cpu_traced", "ratio_cpu_steps", "us_of_trace_per_token", "bytes_stored"}
    for by_batch in figures.values():
        assert list(by_batch) == ["1", "32"] and all(value > 0 for value in by_batch.values())


def test_bench_load() -> None:
    figures = quick_run("bench_load")
    del figures["commit"]
    assert set(figures) == {"index_s", "slice_plan_ms", "slice_mb_s", "rss_mb"}
    assert all(value > 0 for value in figures.values())


def test_bench_relay() -> None:
    small = [(Measured(20e-6, 1.0), Measured(24e-6, 1.0)), (Measured(10e-6, 1.0), Measured(14e-6, 1.0))]
    large = [(Measured(2e-3, 90.0), Measured(3e-3, 80.0))]
    figures = relay_keys(small, large, 95.04)
    assert figures.pop("machine") and figures.pop("commit")
    assert figures == {
        "cpu_us_per_frame_6k": 19.0,
        "ratio_vs_bare_websockets_6k": 1.3,
        "mb_s_3m": 80.0,
        "ratio_vs_bare_websockets_3m": 1.5,
        "peak_rss_mb_slow_consumer": 95.0,
    }


def test_bench_serve() -> None:
    streams = [Stream(1.0, (1.25, 1.5, 2.5), 3), Stream(1.0, (1.5, 1.75, 2.0), 3)]
    rounds = Rounds(service=[80.0, 90.0], engine=[100.0, 90.0], llamacpp=[50.0, 70.0], streams=streams)
    figures = serve_keys({1: rounds, 8: rounds, 64: rounds}, n_threads=1)
    assert figures.pop("machine") and figures.pop("commit")
    assert figures.pop("threads") == 1
    assert {name: by_n["64"] for name, by_n in figures.items()} == {
        "tok_s": 85.0,
        "ttft_ms_p50": 250.0,
        "ttft_ms_p99": 500.0,
        "itl_ms_p50": 250.0,
        "itl_ms_p99": 1000.0,
        "engine_tok_s": 95.0,
        "ratio_service_vs_engine": 0.9,
        "llamacpp_tok_s": 60.0,
    }
    assert all(list(by_n) == ["1", "8", "64"] for by_n in figures.values())


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_a_percentile_is_one_of_the_values(share: float, expected: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], share) == expected
