"""The engine beside llama.cpp at the 122B's real shape: same file, same threads, same run, one after the other.

`python -m benchmarks.bench_vs_llamacpp [--json] [--quick] [--threads N] [--folder DIR]`. Exact mode, all experts in
this process. CPU time of each process, because other programs disturb wall time; a ratio above 1 means that ours is
faster. The model is made for the run (6 GB: `benchmarks.shape.model`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from benchmarks.machine import describe_commit, describe_machine, memory_of
from benchmarks.shape.batch_dependence import is_batch_invariant
from benchmarks.shape.generate_decode import decode
from benchmarks.shape.model import QUICK as QUICK_SHAPE
from benchmarks.shape.model import RealShape, model_bytes, require_room, write_real_shape
from tests.oracles.llama_cpp import LlamaCpp

OURS, IN_PLACE, REPACKED = "ours", "llamacpp", "llamacpp_repacked"
ENGINES = (OURS, IN_PLACE, REPACKED)
N_PROMPT = 4
PREFILL = "pp"


@dataclass(frozen=True, slots=True)
class Plan:
    """The cases of a run: decode steps by batch, the tokens of the long prompt, rounds, and the model's shape."""

    shape: RealShape
    n_steps: Mapping[int, int]
    n_prefill: int
    n_rounds: int

    @property
    def n_ctx(self) -> int:
        """Tokens a sequence needs at most."""
        return max(self.n_prefill, N_PROMPT + max(self.n_steps.values())) + 2


FULL = Plan(RealShape(), {1: 24, 8: 8, 32: 4}, n_prefill=512, n_rounds=5)
QUICK = Plan(QUICK_SHAPE, {1: 2, 8: 2, 32: 2}, n_prefill=64, n_rounds=1)


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of one run's prefill and of its decode steps."""

    prefill_cpu_s: float
    decode_cpu_s: float


Run = Callable[[list[list[int]], int], Cost]  # prompts, tokens each
Speeds = dict[str, dict[str, list[float]]]  # tokens a CPU second by case ("1", "8", "32", "pp"), engine and round


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run."""

    speeds: Speeds
    peak_bytes: Mapping[str, int]  # resident at most, pages of the file included, by engine
    own_bytes: Mapping[str, int]  # without pages of files, at the end
    batch_invariant: bool


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a tiny model: a smoke run whose figures mean nothing")
    parser.add_argument("--threads", type=int, default=1, help="threads of each engine (default 1)")
    parser.add_argument("--folder", type=Path, help="where to make the model (default: the system's temporary folder)")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-", dir=options.folder) as folder:
        require_room(Path(folder), model_bytes(plan.shape))
        figures = measure(write_real_shape(Path(folder) / "model.gguf", plan.shape), plan, options.threads)
    print(json.dumps(as_keys(figures, plan, options.threads)) if options.json else as_table(figures, plan))


def measure(model: Path, plan: Plan, n_threads: int) -> Figures:
    """Run all rounds on a model file."""
    n_slot = max(plan.n_steps)
    with ExitStack() as stack:
        loaded = stack.enter_context(
            LoadedModel.open(model, n_slot=n_slot, n_ctx=plan.n_ctx, n_threads=n_threads),
        )
        runs: dict[str, Run] = {OURS: lambda prompts, n: _our_run(loaded, prompts, n)}
        pids = {OURS: os.getpid()}
        for name in (IN_PLACE, REPACKED):
            process = stack.enter_context(LlamaCpp(deadline_s=600.0))
            process.load(model, n_ctx=plan.n_ctx, n_sequence=n_slot, n_threads=n_threads, is_repacked=name == REPACKED)
            runs[name] = _llamacpp_run(process)
            pids[name] = process.pid
        speeds = _rounds(runs, plan)
        memory = {name: memory_of(pid) for name, pid in pids.items()}
        invariant = is_batch_invariant(loaded, n_slot)
    peak = {name: both[0] for name, both in memory.items()}
    return Figures(speeds, peak, {name: both[1] for name, both in memory.items()}, invariant)


def _rounds(runs: Mapping[str, Run], plan: Plan) -> Speeds:
    cases = [str(batch) for batch in plan.n_steps] + [PREFILL]
    speeds: Speeds = {case: {name: [] for name in ENGINES} for case in cases}
    for number in range(plan.n_rounds + 1):
        for name, run in runs.items():
            for batch, n_steps in plan.n_steps.items():
                cost = run(_prompts(batch, N_PROMPT), n_steps + 1)
                if number:  # the first round warms up
                    speeds[str(batch)][name].append(batch * n_steps / cost.decode_cpu_s)
            cost = run(_prompts(1, plan.n_prefill), 2)
            if number:
                speeds[PREFILL][name].append(plan.n_prefill / cost.prefill_cpu_s)
    return speeds


def _prompts(batch: int, n_tokens: int) -> list[list[int]]:
    """Different token ids in every prompt, so that the router chooses different experts."""
    return [[(31 * row + 17 * column) % 251 + 1 for column in range(n_tokens)] for row in range(batch)]


def _our_run(loaded: LoadedModel, prompts: list[list[int]], n_tokens: int) -> Cost:
    decoding = decode(loaded, NoWorkers(), prompts, n_tokens)
    return Cost(decoding.prefill_cpu_s, decoding.cpu_s)


def _llamacpp_run(process: LlamaCpp) -> Run:
    def run(prompts: list[list[int]], n_tokens: int) -> Cost:
        greedy = process.greedy(prompts, n_tokens)
        return Cost(greedy.prefill_cpu_s, greedy.decode_cpu_s)

    return run


def ratio(speeds: Speeds, case: str, other: str) -> float:
    """Median over rounds of our speed by another's."""
    pairs = zip(speeds[case][OURS], speeds[case][other], strict=True)
    return statistics.median(ours / theirs for ours, theirs in pairs)


def as_keys(figures: Figures, plan: Plan, n_threads: int) -> dict[str, Any]:
    """The figures under the names that they are published with."""
    speeds = figures.speeds
    names = {str(batch): f"tok_s_{batch}" for batch in plan.n_steps} | {PREFILL: f"pp{plan.n_prefill}"}
    return {
        **{f"ratio_{name}": round(ratio(speeds, case, IN_PLACE), 3) for case, name in names.items()},
        **{f"ratio_repacked_{name}": round(ratio(speeds, case, REPACKED), 3) for case, name in names.items()},
        "tok_per_cpu_s": {
            name: {engine: round(statistics.median(values), 2) for engine, values in speeds[case].items()}
            for case, name in names.items()
        },
        "peak_rss_gb": {name: round(size / 1e9, 3) for name, size in figures.peak_bytes.items()},
        "own_gb": {name: round(size / 1e9, 3) for name, size in figures.own_bytes.items()},
        "batch_invariant": figures.batch_invariant,
        "threads": n_threads,
        "machine": describe_machine(),
        "commit": describe_commit(),
    }


def as_table(figures: Figures, plan: Plan) -> str:
    """The figures for people."""
    lines = [f"{'tokens a CPU second':<22}" + "".join(f"{name:>20}" for name in ENGINES) + f"{'ratio':>10}{'':>10}"]
    for case, by_engine in figures.speeds.items():
        label = f"prefill {plan.n_prefill}" if case == PREFILL else f"batch {case}"
        cells = "".join(f"{statistics.median(by_engine[name]):>20.1f}" for name in ENGINES)
        ratios = "".join(f"{ratio(figures.speeds, case, other):>10.2f}" for other in (IN_PLACE, REPACKED))
        lines.append(f"{label:<22}{cells}{ratios}")
    for label, sizes in (("peak memory, GB", figures.peak_bytes), ("own memory, GB", figures.own_bytes)):
        lines.append(f"{label:<22}" + "".join(f"{sizes[name] / 1e9:>20.2f}" for name in ENGINES))
    lines += [f"batch invariant: {figures.batch_invariant}", f"{describe_machine()}, commit {describe_commit()}"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
