"""Tokens a second against the number of workers: emulated phones behind 20 ms, all layers dispatched.

`python -m benchmarks.bench_scale [--json] [--quick] [--folder DIR] [--kind phone|browser|desktop|gpu]`. The service's
core, dispatcher and wire codec run as ever, on a clock of their CPU time; see `emulator` for what is modelled and what
is not. Replies are sums. The tokens of every run are compared with a run without workers. The numbers of workers take
turns; medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.sum_calibration import calibrate
from backbone.engine.swarm.transport import NoWorkers
from benchmarks.emulator.answers import AnswerBook
from benchmarks.emulator.classes import CLASSES, PHONE, LinkClass
from benchmarks.emulator.clock import CpuLoop
from benchmarks.emulator.model import TINY, TRUE_WIDTHS, describe, emulated_model, prompts
from benchmarks.emulator.ranges import Holdings, assign_ranges
from benchmarks.emulator.run import Emulated, Load, run_emulated
from benchmarks.emulator.swarm import EmulatedSwarm
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.shape.model import RealShape

ROUND_TRIP_S = 0.02
JITTER_S = 0.005
FEWEST_REPLICAS = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """The model, how many workers and requests at once, tokens before and within the timed part, and rounds."""

    shape: RealShape
    n_workers: tuple[int, ...]
    n_sequences: int
    n_warm: int
    n_timed: int
    n_rounds: int


FULL = Plan(TRUE_WIDTHS, (1, 2, 4, 8, 16, 32), n_sequences=64, n_warm=12, n_timed=8, n_rounds=3)
QUICK = Plan(TINY, (1, 2, 8), n_sequences=4, n_warm=2, n_timed=2, n_rounds=1)
Runs = dict[int, list[Emulated]]  # rounds by number of workers


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a tiny model: a smoke run whose figures mean nothing")
    parser.add_argument("--folder", type=Path, help="where to make the model (default: the system's temporary folder)")
    parser.add_argument("--kind", choices=CLASSES, default=PHONE.name, help="what the workers are (default: phone)")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-", dir=options.folder) as folder:
        runs = measure(Path(folder), plan, options.kind)
    print(json.dumps(as_keys(runs, plan, options.kind)) if options.json else as_table(runs))


def measure(folder: Path, plan: Plan, kind: str) -> Runs:
    """All rounds of all numbers of workers. Raises RuntimeError when tokens differ or the backbone computed a pair."""
    load = Load(prompts(plan.n_sequences), plan.n_warm, plan.n_timed)
    with emulated_model(folder, plan.shape, plan.n_sequences) as loaded:
        scale = calibrate(loaded)
        alone = run_emulated(loaded, lambda _: NoWorkers(), load, sum_scale=scale)
        runs: Runs = {n_workers: [] for n_workers in plan.n_workers}
        answers = AnswerBook()
        for _ in range(plan.n_rounds):
            for n_workers, done in runs.items():
                held = assign_ranges(alone.traffic, n_workers, FEWEST_REPLICAS)
                run = run_emulated(loaded, partial(_swarm, loaded, held, kind, answers), load, sum_scale=scale)
                if run.token_ids != alone.token_ids:
                    raise RuntimeError(f"the tokens of {n_workers} workers are not those of a run without any")
                if run.n_fallback:
                    raise RuntimeError(f"{run.n_fallback} pairs were not computed by the {n_workers} workers")
                done.append(run)
    return runs


def _swarm(loaded: LoadedModel, held: Holdings, kind: str, answers: AnswerBook, loop: CpuLoop) -> EmulatedSwarm:
    worker, bytes_s = CLASSES[kind]
    link = LinkClass(ROUND_TRIP_S, JITTER_S, to_worker=bytes_s, to_backbone=bytes_s)
    return EmulatedSwarm(loop, loaded.store, held, worker, link, answers=answers)


def median(done: list[Emulated], figure: Callable[[Emulated], float]) -> float:
    """Of the rounds of one number of workers."""
    return float(statistics.median(figure(run) for run in done))


def as_keys(runs: Runs, plan: Plan, kind: str) -> dict[str, Any]:
    """The figures under the names that they are published with; an efficiency is taken within a round."""
    efficiency = statistics.median(eight.tok_s / (8 * one.tok_s) for one, eight in zip(runs[1], runs[8], strict=True))
    return {
        "tok_s": {str(n): round(median(done, lambda run: run.tok_s), 2) for n, done in runs.items()},
        "efficiency_8": round(efficiency, 3),
        "backbone_utilisation": {
            str(n): round(median(done, lambda run: run.utilisation), 3) for n, done in runs.items()
        },
        "groups": {str(n): done[-1].n_groups for n, done in runs.items()},
        "kind": kind,
        "model": describe(plan.shape),
        "machine": describe_machine(),
        "commit": describe_commit(),
    }


def as_table(runs: Runs) -> str:
    """The figures for people."""
    lines = [f"{'workers':<10}{'tok/s':>10}{'of linear':>12}{'backbone':>12}{'groups':>10}"]
    first, one = next(iter(runs.items()))
    for n_workers, done in runs.items():
        tok_s = median(done, lambda run: run.tok_s)
        share = tok_s / (n_workers / first * median(one, lambda run: run.tok_s))
        busy = f"{median(done, lambda run: run.utilisation):.0%}"
        lines.append(f"{n_workers:<10}{tok_s:>10.1f}{share:>12.0%}{busy:>12}{done[-1].n_groups:>10}")
    return "\n".join([*lines, f"{describe_machine()}, commit {describe_commit()}"])


if __name__ == "__main__":
    main()
