"""Measure how far the engine is from llama.cpp and from float64, and whether sharding changes a bit.

`python -m benchmarks.bench_exact [--json] [--quick] [--text FILE]`. Tiny random models of every architecture, and the
demo model on a text. llama.cpp runs in a process of its own, workers in processes of theirs. Nothing here is timed.
METHODOLOGY.md says what each figure is.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.exact.demo import WINDOW, DemoFigures, measure_demo
from benchmarks.exact.logits import (
    QUANTISED,
    Apart,
    RelativeErrors,
    TinyFiles,
    errors_against_float64,
    float64_decode,
    from_llama_cpp,
)
from benchmarks.exact.sharded import is_sharded_identical
from benchmarks.machine import describe_commit, describe_machine
from tests.oracles.llama_cpp import LlamaCpp
from tests.oracles.tiny_layout import ARCHITECTURES, TinyShape

ROOT = Path(__file__).resolve().parents[1]
DEMO_MODEL = ROOT / "models" / "kvasir-demo-moe.q4_k_m.gguf"
STORIES = ROOT / "tests" / "data" / "stories.txt"
TOLERANCE = 2e-5
PPL_TOLERANCE = 0.005


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent of a run."""

    architectures: Sequence[str]
    shape: TinyShape
    prompt_seeds: Sequence[int]  # of the prompts whose errors against float64 are pooled
    sharded_types: Sequence[str]
    max_windows: int | None


FULL = Plan(ARCHITECTURES, TinyShape(), range(6), ("F32", *QUANTISED), None)
QUICK = Plan(("qwen3moe", "qwen35moe"), TinyShape(n_layer=2, n_expert=4, n_used=2), range(1), ("Q4_K",), 1)


@dataclass(frozen=True, slots=True)
class ArchitectureFigures:
    """One architecture's figures. Dictionaries are by file type, `apart` also by path."""

    apart: dict[str, Apart]
    f64_decode: float
    errors: dict[str, RelativeErrors]
    sharded: dict[str, bool]

    @property
    def max_abs(self) -> float:
        """Largest distance from llama.cpp on F32 weights."""
        return max(case.max_abs for case in self.apart.values())

    def as_keys(self) -> dict[str, object]:
        """Under the names that they are published with."""
        return {
            "max_abs_llamacpp": _rounded(self.max_abs),
            "max_abs_by_path": {name: _rounded(case.max_abs) for name, case in self.apart.items()},
            "greedy_equal": all(case.is_greedy_equal for case in self.apart.values()),
            "f64_decode": _rounded(self.f64_decode),
            "kx1_rel_err": {name: _rounded(error.kx1) for name, error in self.errors.items()},
            "llamacpp_rel_err": {name: _rounded(error.llama_cpp) for name, error in self.errors.items()},
            "sharded_identical": all(self.sharded.values()),
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="two architectures, one window: a smoke run")
    parser.add_argument("--text", type=Path, default=STORIES, help="stories for the demo model (default: our own)")
    options = parser.parse_args()
    plan, text = QUICK if options.quick else FULL, options.text.read_text()
    with LlamaCpp() as llama_cpp:
        architectures = {name: measure_architecture(name, plan, llama_cpp) for name in plan.architectures}
        demo = measure_demo(DEMO_MODEL, text, llama_cpp, max_windows=plan.max_windows)
    print(json.dumps(as_keys(architectures, demo)) if options.json else as_table(architectures, demo))


def measure_architecture(architecture: str, plan: Plan, llama_cpp: LlamaCpp) -> ArchitectureFigures:
    """All figures of one architecture, on files that are made for it and removed."""
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-") as name:
        folder = Path(name)
        files = TinyFiles.write(architecture, plan.shape, folder)
        return ArchitectureFigures(
            apart=from_llama_cpp(files, llama_cpp),
            f64_decode=max(float64_decode(path) for path in files.quantised.values()),
            errors={
                quantised: errors_against_float64(path, llama_cpp, plan.prompt_seeds)
                for quantised, path in files.quantised.items()
            },
            sharded={
                served: is_sharded_identical(files.served[served], folder / f"workers-{served}")
                for served in plan.sharded_types
            },
        )


def as_keys(architectures: dict[str, ArchitectureFigures], demo: DemoFigures) -> dict[str, Any]:
    """The figures under the names that they are published with."""
    return {
        "archs": {name: figures.as_keys() for name, figures in architectures.items()},
        "demo_ppl_ours": round(demo.ppl_ours, 4),
        "demo_ppl_llamacpp": round(demo.ppl_llama_cpp, 4),
        "demo_ppl_float": round(demo.ppl_float, 4),
        "demo_greedy_agree": round(demo.greedy_agree, 4),
        "demo_greedy_agree_with_float": {
            "ours": round(demo.greedy_ours_float, 4),
            "llamacpp": round(demo.greedy_llama_cpp_float, 4),
        },
        "machine": describe_machine(),
        "commit": describe_commit(),
    }


def as_table(architectures: dict[str, ArchitectureFigures], demo: DemoFigures) -> str:
    """The figures for people, with the goals."""
    lines = [
        f"{'':<11}{'max|Δ|':>9} {'greedy':>7} {'f64 decode':>11}  "
        + "  ".join(f"{f'error {name}: ours, llama.cpp':>30}" for name in QUANTISED)
        + "  sharded"
    ]
    for name, figures in architectures.items():
        errors = "  ".join(
            f"{f'{figures.errors[quantised].kx1:.2%}, {figures.errors[quantised].llama_cpp:.2%}':>30}"
            for quantised in QUANTISED
        )
        is_equal = all(case.is_greedy_equal for case in figures.apart.values())
        lines.append(
            f"{name:<11}{figures.max_abs:>9.1e} {'equal' if is_equal else 'DIFFER':>7} {figures.f64_decode:>11.1e}  "
            f"{errors}  {'identical' if all(figures.sharded.values()) else 'DIFFERENT'}"
        )
    apart = demo.ppl_ours / demo.ppl_llama_cpp - 1
    lines += [
        f"goals: max|Δ| ≤ {TOLERANCE:g}, f64 decode ≤ 1e-12; error: median over tokens, against float64",
        f"demo perplexity, {demo.n_windows} windows of {WINDOW} tokens: ours {demo.ppl_ours:.4f}, llama.cpp "
        f"{demo.ppl_llama_cpp:.4f} ({apart:+.3%}, goal within {PPL_TOLERANCE:.1%}), float {demo.ppl_float:.4f}",
        f"demo greedy choices equal at {demo.n_scored} positions: ours and llama.cpp {demo.greedy_agree:.2%}, "
        f"ours and float {demo.greedy_ours_float:.2%}, llama.cpp and float {demo.greedy_llama_cpp_float:.2%}",
        describe_machine(),
    ]
    return "\n".join(lines)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


if __name__ == "__main__":
    main()
