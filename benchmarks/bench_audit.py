"""Measure how soon lies are found, what they reach, and what checking costs.

`python -m benchmarks.bench_audit [--json] [--quick]`. Detection is simulated over the production rules and seen once in
the real engine; what reaches a text and what checking costs is the real engine alone. METHODOLOGY.md says what each
figure is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backbone.engine.trust.standing import TrustPolicy
from benchmarks.audit.simulated import Detection, simulate
from benchmarks.audit.swarm import (
    LyingRun,
    cost_pct,
    cut_halves,
    open_demo,
    run_with_liar,
    worker_processes,
    write_alone,
)
from benchmarks.machine import describe_commit, describe_machine

DEMO_MODEL = Path(__file__).resolve().parents[1] / "models" / "kvasir-demo-moe.q4_k_m.gguf"
COST_GOAL_PCT = 2.0
N_SLOT = 2
COST_BATCHES = (1, 8)
ENGINE_SHARE = 1 / 4  # sampled in the engine's runs, so that rare lies are found while they last
PROVEN = TrustPolicy(proven_after=0, first_share=ENGINE_SHARE, least_share=ENGINE_SHARE)
UNPROVEN = TrustPolicy(proven_after=10**9)


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent of a run. Prompts by share of lies: rarer lies need more replies to be found."""

    n_runs: int
    n_prompts: Mapping[float, int]
    n_confirmed_prompts: int  # in strict mode and with an unproven worker
    n_cost_prompts: int
    n_cost_runs: int


FULL = Plan(401, {0.001: 240, 0.01: 48, 0.1: 24}, 12, 16, 3)
QUICK = Plan(21, {0.001: 4, 0.01: 4, 0.1: 4}, 4, 4, 1)


@dataclass(frozen=True, slots=True)
class ShareFigures:
    """Everything of one share of lies."""

    simulated: Detection
    default: LyingRun
    strict: LyingRun
    unproven: LyingRun


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a smoke run whose figures mean nothing")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-") as folder:
        shares = measure_lies(plan, Path(folder))
        costs = measure_costs(plan, Path(folder))
    print(json.dumps(as_keys(shares, costs)) if options.json else as_table(shares, costs))


def measure_lies(plan: Plan, folder: Path) -> dict[float, ShareFigures]:
    """Each share of lies, simulated and in the engine."""
    figures = {}
    with open_demo(DEMO_MODEL, N_SLOT) as loaded:
        slices = cut_halves(DEMO_MODEL, folder / "slices", loaded.card.n_expert)
        alone = write_alone(loaded, max(*plan.n_prompts.values(), plan.n_confirmed_prompts))

        def run(share: float, policy: TrustPolicy, n_prompts: int, *, is_strict: bool = False) -> LyingRun:
            return run_with_liar(loaded, alone, slices, share, policy, n_prompts=n_prompts, seed=3, is_strict=is_strict)

        for share, n_prompts in plan.n_prompts.items():
            figures[share] = ShareFigures(
                simulate(share, plan.n_runs, TrustPolicy(), seed=1),
                run(share, PROVEN, n_prompts),
                run(share, PROVEN, plan.n_confirmed_prompts, is_strict=True),
                run(share, UNPROVEN, plan.n_confirmed_prompts),
            )
    return figures


def measure_costs(plan: Plan, folder: Path) -> dict[str, dict[int, float]]:
    """Per cent of the backbone's CPU time, by mode and batch; medians of runs by turns."""
    found: dict[str, dict[int, list[float]]] = {mode: {n: [] for n in COST_BATCHES} for mode in ("default", "strict")}
    for batch in COST_BATCHES:
        with open_demo(DEMO_MODEL, batch) as loaded:
            slices = cut_halves(DEMO_MODEL, folder / "slices", loaded.card.n_expert)
            with worker_processes(slices, folder) as addresses:
                for _ in range(plan.n_cost_runs):
                    for mode, costs in found.items():
                        is_strict = mode == "strict"
                        costs[batch].append(
                            cost_pct(loaded, addresses, n_prompts=plan.n_cost_prompts, is_strict=is_strict)
                        )
    return {mode: {n: statistics.median(runs) for n, runs in costs.items()} for mode, costs in found.items()}


def as_keys(shares: dict[float, ShareFigures], costs: dict[str, dict[int, float]]) -> dict[str, Any]:
    """The figures under the names that they are published with."""
    return {
        "lie_shares": {
            str(share): {
                "detected_after_replies": figures.simulated.median,
                "detected_after_replies_mean": round(figures.simulated.mean, 1),
                "expected_at_least_share": round(figures.simulated.expected_at_least_share),
                "detected_after_replies_engine": figures.default.detected_after,
                "wrong_tokens_strict": figures.strict.n_wrong_tokens,
                "wrong_tokens_unproven": figures.unproven.n_wrong_tokens,
                "affected_requests_strict": len(figures.strict.affected),
                "affected_requests_default": len(figures.default.affected),
                "all_affected_flagged": figures.default.are_all_flagged,
                "flagged_requests_default": len(figures.default.flagged),
                "lies_told_default": figures.default.n_lies,
            }
            for share, figures in shares.items()
        },
        "engine_sample_share": ENGINE_SHARE,
        "audit_cost_pct": {mode: round(max(by_batch.values()), 2) for mode, by_batch in costs.items()},
        "audit_cost_pct_by_batch": {
            mode: {str(n): round(cost, 2) for n, cost in by_batch.items()} for mode, by_batch in costs.items()
        },
        "machine": describe_machine(),
        "commit": describe_commit(),
    }


def as_table(shares: dict[float, ShareFigures], costs: dict[str, dict[int, float]]) -> str:
    """The figures for people, with the goals."""
    lines = [
        f"simulated with the production shares; the engine's runs sample {ENGINE_SHARE:g} of the answers",
        f"{'lies':>6} {'found after replies: median, mean, engine':>42} {'strict: wrong tokens':>21} "
        f"{'default: affected, flagged':>27} {'all flagged':>12}",
    ]
    for share, figures in shares.items():
        found = f"{figures.simulated.median:.0f}, {figures.simulated.mean:.0f}, {figures.default.detected_after}"
        lines.append(
            f"{share:>6.1%} {found:>42} {figures.strict.n_wrong_tokens:>21} "
            f"{f'{len(figures.default.affected)}, {len(figures.default.flagged)}':>27} "
            f"{figures.default.are_all_flagged!s:>12}"
        )
    for mode, by_batch in costs.items():
        shown = ", ".join(f"batch {n}: {cost:.2f} %" for n, cost in by_batch.items())
        goal = f" (goal ≤ {COST_GOAL_PCT:g} %)" if mode == "default" else ""
        lines.append(f"CPU of checks in {mode} mode, of all other CPU of the backbone: {shown}{goal}")
    return "\n".join([*lines, describe_machine()])


if __name__ == "__main__":
    main()
