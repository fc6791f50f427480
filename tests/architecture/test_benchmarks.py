"""Every benchmark is in `make bench`, and METHODOLOGY says how it measures."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = {path.stem.removeprefix("bench_") for path in (ROOT / "benchmarks").glob("bench_*.py")}


def test_make_bench_runs_every_benchmark_once() -> None:
    rule = (ROOT / "Makefile").read_text(encoding="utf-8").split("\nbench:", maxsplit=1)[1]
    (listed,) = re.findall(r"for name in ([a-z_ ]+); do", rule)
    names = listed.split()
    assert sorted(names) == sorted(NAMES)


def test_every_benchmark_has_a_section() -> None:
    text = (ROOT / "benchmarks" / "METHODOLOGY.md").read_text(encoding="utf-8")
    headings = "\n".join(re.findall(r"^## .*$", text, re.MULTILINE))
    assert set(re.findall(r"\bbench_(\w+)", headings)) == NAMES
