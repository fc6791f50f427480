"""Measure where a decode step's time goes: CPU milliseconds by part, at batch 1, 8 and 64, in one process and over the
relay.

`python -m benchmarks.shape.step_profile [--json] [--quick] [--folder DIR]`. The model and the processes of
`bench_overhead`, one thread each; prints the table of docs/develop/performance.md. Clocks around operations cost a
microsecond a call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from backbone.engine.ops.stable_ops import StableOps
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.sequence import Sequence as EngineSequence
from backbone.engine.swarm.edge_pool import EdgePool
from backbone.engine.swarm.transport import NoWorkers, Transport
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.relay.sandbox import kvasir_relay
from benchmarks.shape.generate_decode import decode
from benchmarks.shape.model import model_bytes, require_room, write_real_shape
from benchmarks.shape.over_relay import FULL, QUICK, Plan, joined_worker, wait_for_a_worker
from kvasir.kernels.kx1 import LoadedKX1Experts
from kvasir.relay.directory import FixedDirectory
from kvasir.wire.frames import Role

N_PROMPT = 4
N_ROUNDS = 3
REST, EDGES, RELAY, WORKER = "Python, torch and the rest", "the edges' thread", "the relay", "the worker"
PARTS: Mapping[str, tuple[type, tuple[str, ...]]] = {
    "dense matrices": (StableOps, ("linear",)),
    "routed experts": (LoadedKX1Experts, ("compute",)),
    "attention": (StableOps, ("attend",)),
    "recurrent state": (StableOps, ("causal_conv", "delta_rule")),
    "norms and activations": (
        StableOps,
        ("rms_norm", "l2_norm", "silu", "silu_mul", "sigmoid", "softplus"),
    ),
    "choice of experts": (StableOps, ("route",)),
    "combine": (StableOps, ("combine",)),
    "choice of tokens": (EngineSequence, ("advance",)),
}
ROWS = (*PARTS, REST, EDGES, RELAY, WORKER)
Costs = Counter[str]  # CPU seconds by part
Clocks = Mapping[str, Callable[[], float]]  # of everything that is not the engine's thread


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line instead of the table")
    parser.add_argument("--quick", action="store_true", help="a tiny model: a smoke run whose figures mean nothing")
    parser.add_argument("--folder", type=Path, help="where to make the model (default: the system's temporary folder)")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-", dir=options.folder) as folder:
        require_room(Path(folder), 2 * model_bytes(plan.shape))
        figures = measure(Path(folder), plan, 1 if options.quick else N_ROUNDS)
    about = {"machine": describe_machine(), "commit": describe_commit()}
    print(json.dumps({"step_ms": figures, **about}) if options.json else as_table(figures))


def measure(folder: Path, plan: Plan, n_rounds: int) -> dict[str, dict[str, float]]:
    """CPU milliseconds of a step by case ("1", "1 over the relay", ...) and part; medians over rounds."""
    model = write_real_shape(folder / "model.gguf", plan.shape)
    with ExitStack() as stack:
        loaded = stack.enter_context(LoadedModel.open(model, n_slot=max(plan.n_steps), n_ctx=64, n_threads=1))
        relay, tokens = stack.enter_context(kvasir_relay(folder))
        worker = stack.enter_context(joined_worker(loaded, folder, relay.url, tokens[Role.WORKER]))
        hello = replace(loaded.hello(), token=tokens[Role.BACKBONE])
        edges = stack.enter_context(EdgePool([], hello, relays=FixedDirectory({"bench": relay.url})))
        wait_for_a_worker(edges)
        clocks = {EDGES: _other_threads_s, RELAY: _clock_of(relay.pid), WORKER: _clock_of(worker.pid)}
        costs = stack.enter_context(timed_parts())
        rounds: dict[str, list[Costs]] = {}
        for number in range(n_rounds + 1):
            for batch, n_steps in plan.n_steps.items():
                for name, transport in ((f"{batch}", NoWorkers()), (f"{batch} over the relay", edges)):
                    step = _step_costs(loaded, transport, clocks, costs, batch, n_steps)
                    if number:  # the first round warms up
                        rounds.setdefault(name, []).append(step)
    return {
        name: {part: round(1e3 * statistics.median(step[part] for step in steps), 3) for part in ROWS}
        for name, steps in rounds.items()
    }


def _other_threads_s() -> float:
    """CPU seconds of this process's threads but this one: those of the edges'."""
    return time.process_time() - time.thread_time()


def _clock_of(pid: int) -> Callable[[], float]:
    """CPU seconds of a process so far: by the clock of its own that Linux has, else in the system's ticks."""
    process, clock_id = psutil.Process(pid), ~pid << 3 | 2  # clock_getcpuclockid(3), which Python does not have

    def clock() -> float:
        if sys.platform == "linux":
            return time.clock_gettime(clock_id)
        times = process.cpu_times()
        return float(times.user) + float(times.system)

    return clock


@contextmanager
def timed_parts() -> Iterator[Costs]:
    """Count the thread time of every operation in PARTS, while the context lasts."""
    costs, before = Costs(), list[tuple[type, str, Any]]()
    try:
        for part, (owner, names) in PARTS.items():
            for name in names:
                before.append((owner, name, getattr(owner, name)))
                setattr(owner, name, _timed(getattr(owner, name), part, costs))
        yield costs
    finally:
        for owner, name, method in before:
            setattr(owner, name, method)


def _timed(method: Callable[..., Any], part: str, costs: Costs) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.thread_time()
        try:
            return method(*args, **kwargs)
        finally:
            costs[part] += time.thread_time() - started  # type: ignore[assignment]

    return timed


def _step_costs(
    loaded: LoadedModel, transport: Transport, clocks: Clocks, costs: Costs, batch: int, n_steps: int
) -> Costs:
    """CPU seconds of one decode step: those of a run with `n_steps` of them, less those of a run with none."""
    none, some = (_run_costs(loaded, transport, clocks, costs, batch, n) for n in (1, n_steps + 1))
    return Costs({part: max(some[part] - none[part], 0.0) / n_steps for part in ROWS})


def _run_costs(
    loaded: LoadedModel, transport: Transport, clocks: Clocks, costs: Costs, batch: int, n_tokens: int
) -> Costs:
    prompts: Sequence[Sequence[int]] = [
        [(31 * row + 17 * column) % 251 + 1 for column in range(N_PROMPT)] for row in range(batch)
    ]
    costs.clear()
    before = {name: clock() for name, clock in clocks.items()}
    started = time.thread_time()
    decode(loaded, transport, prompts, n_tokens)
    whole = time.thread_time() - started
    run = Costs(costs)
    run[REST] = whole - sum(costs.values())  # type: ignore[assignment]
    for name, clock in clocks.items():
        run[name] = clock() - before[name]  # type: ignore[assignment]
    return run


def as_table(figures: Mapping[str, Mapping[str, float]]) -> str:
    """Markdown: parts down, cases across, milliseconds; the sum last."""
    lines = ["| CPU ms of a step, batch | " + " | ".join(figures) + " |", "|---|" + "---:|" * len(figures)]
    for part in ROWS:
        cells = (f"{costs[part]:.2f}" if costs[part] >= 0.005 else "" for costs in figures.values())
        lines.append(f"| {part} | " + " | ".join(cells) + " |")
    lines.append("| all | " + " | ".join(f"{sum(costs.values()):.1f}" for costs in figures.values()) + " |")
    return "\n".join([*lines, "", f"{describe_machine()}, commit {describe_commit()}"])


if __name__ == "__main__":
    main()
