"""Tokens a second against the number of workers: emulated phones behind 20 ms, all layers dispatched.

`python -m benchmarks.bench_scale [--json] [--quick] [--folder DIR]`. The service's core, dispatcher and wire codec run
as ever, on a clock of their CPU time; see `emulator` for what is modelled and what is not. Replies are sums. The tokens
of every run are compared with a run without workers.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from backbone.engine.loaded_model import LoadedModel
from backbone.engine.sum_calibration import calibrate
from backbone.engine.transport import NoWorkers
from benchmarks.emulator import EmulatedSwarm
from benchmarks.emulator_answers import AnswerBook
from benchmarks.emulator_classes import PHONE, WIFI_BYTES_S, LinkClass
from benchmarks.emulator_clock import CpuLoop
from benchmarks.emulator_model import TINY, TRUE_WIDTHS, describe, emulated_model, prompts
from benchmarks.emulator_ranges import Holdings, assign_ranges
from benchmarks.emulator_run import Emulated, Load, run_emulated
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.real_shape_model import RealShape

LINK = LinkClass(round_trip_s=0.02, jitter_s=0.005, to_worker=WIFI_BYTES_S, to_backbone=WIFI_BYTES_S)
FEWEST_REPLICAS = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """The model, how many workers and requests at once, and tokens before and within the timed part."""

    shape: RealShape
    n_workers: tuple[int, ...]
    n_sequences: int
    n_warm: int
    n_timed: int


FULL = Plan(TRUE_WIDTHS, (1, 2, 4, 8, 16, 32), n_sequences=64, n_warm=12, n_timed=8)
QUICK = Plan(TINY, (1, 2, 8), n_sequences=4, n_warm=2, n_timed=2)
Runs = dict[int, Emulated]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a tiny model: a smoke run whose figures mean nothing")
    parser.add_argument("--folder", type=Path, help="where to make the model (default: the system's temporary folder)")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-", dir=options.folder) as folder:
        runs = measure(Path(folder), plan)
    print(json.dumps(as_keys(runs, plan)) if options.json else as_table(runs))


def measure(folder: Path, plan: Plan) -> Runs:
    """One run for each number of workers. Raises RuntimeError when tokens differ or the backbone computed a pair."""
    load = Load(prompts(plan.n_sequences), plan.n_warm, plan.n_timed)
    with emulated_model(folder, plan.shape, plan.n_sequences) as loaded:
        scale = calibrate(loaded)
        alone = run_emulated(loaded, lambda _: NoWorkers(), load, sum_scale=scale)
        runs: Runs = {}
        answers = AnswerBook()
        for n_workers in plan.n_workers:
            held = assign_ranges(alone.traffic, n_workers, FEWEST_REPLICAS)
            make_swarm = partial(_swarm, loaded, held, answers)
            run = run_emulated(loaded, make_swarm, load, sum_scale=scale)
            if run.token_ids != alone.token_ids:
                raise RuntimeError(f"the tokens of {n_workers} workers are not those of a run without any")
            if run.n_fallback:
                raise RuntimeError(f"{run.n_fallback} pairs were not computed by the {n_workers} workers")
            runs[n_workers] = run
    return runs


def _swarm(loaded: LoadedModel, held: Holdings, answers: AnswerBook, loop: CpuLoop) -> EmulatedSwarm:
    return EmulatedSwarm(loop, loaded.store, held, PHONE, LINK, answers=answers)


def as_keys(runs: Runs, plan: Plan) -> dict[str, Any]:
    """The figures under the names that they are published with."""
    return {
        "tok_s": {str(n): round(run.tok_s, 2) for n, run in runs.items()},
        "efficiency_8": round(runs[8].tok_s / (8 * runs[1].tok_s), 3),
        "backbone_utilisation": {str(n): round(run.utilisation, 3) for n, run in runs.items()},
        "groups": {str(n): run.n_groups for n, run in runs.items()},
        "model": describe(plan.shape),
        "machine": describe_machine(),
        "commit": describe_commit(),
    }


def as_table(runs: Runs) -> str:
    """The figures for people."""
    lines = [f"{'workers':<10}{'tok/s':>10}{'of linear':>12}{'backbone':>12}{'groups':>10}"]
    first, one = next(iter(runs.items()))
    for n_workers, run in runs.items():
        share = run.tok_s / (n_workers / first * one.tok_s)
        busy = f"{run.utilisation:.0%}"
        lines.append(f"{n_workers:<10}{run.tok_s:>10.1f}{share:>12.0%}{busy:>12}{run.n_groups:>10}")
    return "\n".join([*lines, f"{describe_machine()}, commit {describe_commit()}"])


if __name__ == "__main__":
    main()
