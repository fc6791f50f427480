"""Measure what a round trip costs: the same emulated workers at 0, 5, 20 and 50 ms, with 1, 8 and 64 requests at once.

`python -m benchmarks.bench_latency_hiding [--json] [--quick] [--folder DIR]`. The service's core chooses how many
micro-batches are in flight, as in production; beside it 64 requests run with one micro-batch alone. The clock is the
backbone's CPU time and the idle time that it skips (`emulator.clock`). Replies are sums. The tokens of every run are
compared with a run without workers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.sum_calibration import calibrate
from backbone.engine.swarm.sum_scale import SumScale
from backbone.engine.swarm.transport import NoWorkers
from benchmarks.emulator.answers import AnswerBook
from benchmarks.emulator.classes import CABLE_BYTES_S, DESKTOP, LinkClass
from benchmarks.emulator.model import TINY, TRUE_WIDTHS, describe, emulated_model, prompts
from benchmarks.emulator.ranges import assign_ranges
from benchmarks.emulator.run import Emulated, Load, run_emulated
from benchmarks.emulator.swarm import EmulatedSwarm
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.shape.model import RealShape

N_WORKERS = 8
FEWEST_REPLICAS = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """The model, requests at once with the tokens before and within their timed part, round trips, and rounds."""

    shape: RealShape
    n_tokens: Mapping[int, tuple[int, int]]
    round_trips_ms: tuple[int, ...]
    n_rounds: int


class Case(NamedTuple):
    """One setting; `n_groups` None: as many micro-batches as the planner takes."""

    n_sequences: int
    round_trip_ms: int
    n_groups: int | None


FULL = Plan(TRUE_WIDTHS, {1: (4, 12), 8: (16, 12), 64: (12, 6)}, (0, 5, 20, 50), n_rounds=3)
QUICK = Plan(TINY, {1: (2, 2), 8: (2, 2), 64: (1, 1)}, (0, 20), n_rounds=1)
Runs = dict[Case, list[Emulated]]


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


def cases(plan: Plan) -> Iterator[Case]:
    """All settings, those that are compared one after the other."""
    for n_sequences in plan.n_tokens:
        for round_trip_ms in plan.round_trips_ms:
            yield Case(n_sequences, round_trip_ms, None)
    for round_trip_ms in plan.round_trips_ms:
        yield Case(max(plan.n_tokens), round_trip_ms, 1)


def measure(folder: Path, plan: Plan) -> Runs:
    """All rounds of all cases. Raises RuntimeError when tokens differ or the backbone computed a pair."""
    with emulated_model(folder, plan.shape, max(plan.n_tokens)) as loaded:
        setting = Setting(loaded, calibrate(loaded), plan)
        runs: Runs = {case: [] for case in cases(plan)}
        for _ in range(plan.n_rounds):
            for case, done in runs.items():
                done.append(setting.run(case))
    return runs


class Setting:
    """What all cases share: the model, what runs without workers gave, and the workers' answers so far."""

    def __init__(self, loaded: LoadedModel, scale: SumScale, plan: Plan) -> None:
        self._loaded = loaded
        self._scale = scale
        self._loads = {n: Load(prompts(n), *n_tokens) for n, n_tokens in plan.n_tokens.items()}
        alone = {
            n: run_emulated(loaded, lambda _: NoWorkers(), load, sum_scale=scale) for n, load in self._loads.items()
        }
        self._expected = {n: run.token_ids for n, run in alone.items()}
        self._held = assign_ranges(alone[max(alone)].traffic, N_WORKERS, FEWEST_REPLICAS)
        self._answers = AnswerBook()

    def run(self, case: Case) -> Emulated:
        """Run a case. Raises RuntimeError when tokens differ or the backbone computed a pair."""
        link = LinkClass(case.round_trip_ms / 1000, to_worker=CABLE_BYTES_S, to_backbone=CABLE_BYTES_S)
        store = self._loaded.store
        run = run_emulated(
            self._loaded,
            lambda loop: EmulatedSwarm(loop, store, self._held, DESKTOP, link, answers=self._answers),
            self._loads[case.n_sequences],
            sum_scale=self._scale,
            n_groups=case.n_groups,
        )
        if run.token_ids != self._expected[case.n_sequences]:
            raise RuntimeError(f"the tokens of {case} are not those of a run without workers")
        if run.n_fallback:
            raise RuntimeError(f"{run.n_fallback} pairs of {case} were not computed by workers")
        return run


def tok_s(runs: Runs, n_sequences: int, round_trip_ms: int, n_groups: int | None = None) -> float:
    """The median over the rounds of a case."""
    return statistics.median(run.tok_s for run in runs[Case(n_sequences, round_trip_ms, n_groups)])


def as_keys(runs: Runs, plan: Plan) -> dict[str, Any]:
    """The figures under the names that they are published with."""
    far = [ms for ms in plan.round_trips_ms if ms]
    most = max(plan.n_tokens)
    ratios = {
        f"throughput_vs_rtt0_{n}": {str(ms): round(tok_s(runs, n, ms) / tok_s(runs, n, 0), 3) for ms in far}
        for n in plan.n_tokens
    }
    one_group = {str(ms): round(tok_s(runs, most, ms, 1) / tok_s(runs, most, 0), 3) for ms in plan.round_trips_ms}
    return {
        **ratios,
        f"one_group_vs_rtt0_{most}": one_group,
        "tok_s": {str(n): {str(ms): round(tok_s(runs, n, ms), 2) for ms in plan.round_trips_ms} for n in plan.n_tokens},
        "groups": {
            str(n): {str(ms): runs[Case(n, ms, None)][-1].n_groups for ms in plan.round_trips_ms} for n in plan.n_tokens
        },
        "texts_identical": True,
        "model": describe(plan.shape),
        "machine": describe_machine(),
        "commit": describe_commit(),
    }


def as_table(runs: Runs) -> str:
    """The figures for people."""
    lines = [f"{'at once':<10}{'round trip':>12}{'tok/s':>10}{'of 0 ms':>10}{'backbone':>12}{'groups':>16}"]
    for case, done in runs.items():
        rate = tok_s(runs, *case)
        share = rate / tok_s(runs, case.n_sequences, 0)
        busy = f"{statistics.median(run.utilisation for run in done):.0%}"
        groups = f"{done[-1].n_groups}{' (fixed)' if case.n_groups else ''}"
        trip = f"{case.round_trip_ms} ms"
        lines.append(f"{case.n_sequences:<10}{trip:>12}{rate:>10.1f}{share:>10.0%}{busy:>12}{groups:>16}")
    return "\n".join([*lines, f"{describe_machine()}, commit {describe_commit()}"])


if __name__ == "__main__":
    main()
