"""Measure what the whole way to a worker costs: real processes through the relay on loopback, against one process.

`python -m benchmarks.bench_overhead [--json] [--quick] [--folder DIR]`. One thread each in this process and in one
worker that holds every expert, so at any moment one thread computes in both ways of running; what sharding adds is
frames, checks, the relay and wake-ups. Layers have the 122B's widths (64 experts each, to be made quickly). Greedy
decoding; all tokens are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.sum_calibration import calibrate
from backbone.engine.swarm.edge_pool import EdgePool
from backbone.engine.swarm.sum_scale import SumScale
from backbone.engine.swarm.transport import NoWorkers, Transport
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.relay.sandbox import kvasir_relay
from benchmarks.shape.generate_decode import decode
from benchmarks.shape.model import model_bytes, require_room, write_real_shape
from benchmarks.shape.over_relay import FULL, QUICK, Plan, joined_worker, wait_for_a_worker
from kvasir.relay.directory import FixedDirectory
from kvasir.wire.frames import Role

N_PROMPT = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall and CPU seconds of a run's decode steps; CPU of all processes that took part."""

    wall_s: float
    cpu_s: float


REPLIES = ("f32", "sum")  # one output a pair, and one row of integers a row
Rounds = dict[tuple[str, int], list[tuple[Cost, Cost]]]  # in-process and through the relay, by reply, batch and round


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a tiny model: a smoke run whose figures mean nothing")
    parser.add_argument("--folder", type=Path, help="where to make the model (default: the system's temporary folder)")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-", dir=options.folder) as folder:
        require_room(Path(folder), 2 * model_bytes(plan.shape))
        rounds = measure(Path(folder), plan)
    print(json.dumps(as_keys(rounds)) if options.json else as_table(rounds))


def measure(folder: Path, plan: Plan) -> Rounds:
    """Run all rounds. Raises RuntimeError when tokens differ or the worker did not compute every pair."""
    model = write_real_shape(folder / "model.gguf", plan.shape)
    with ExitStack() as stack:
        loaded = stack.enter_context(
            LoadedModel.open(model, n_slot=max(plan.n_steps), n_ctx=64, n_threads=1),
        )
        relay, tokens = stack.enter_context(kvasir_relay(folder))
        worker = stack.enter_context(joined_worker(loaded, folder, relay.url, tokens[Role.WORKER]))
        hello = replace(loaded.hello(), token=tokens[Role.BACKBONE])
        edges = stack.enter_context(EdgePool([], hello, relays=FixedDirectory({"bench": relay.url})))
        wait_for_a_worker(edges)
        return _rounds(loaded, edges, [psutil.Process(relay.pid), psutil.Process(worker.pid)], plan)


def _rounds(loaded: LoadedModel, edges: Transport, others: Sequence[psutil.Process], plan: Plan) -> Rounds:
    scales = {"f32": None, "sum": calibrate(loaded)}
    rounds: Rounds = {(reply, batch): [] for reply in REPLIES for batch in plan.n_steps}
    for number in range(plan.n_rounds + 1):
        for reply, batch in rounds:
            alone, expected = _run(loaded, NoWorkers(), [], batch, plan.n_steps[batch], scales[reply])
            sharded, token_ids = _run(loaded, edges, others, batch, plan.n_steps[batch], scales[reply])
            if token_ids != expected:
                raise RuntimeError("the tokens through the relay are not the in-process run's")
            if number:  # the first round warms up
                rounds[reply, batch].append((alone, sharded))
    return rounds


def _run(
    loaded: LoadedModel,
    transport: Transport,
    others: Sequence[psutil.Process],
    batch: int,
    n_steps: int,
    scale: SumScale | None,
) -> tuple[Cost, list[list[int]]]:
    prompts = [[(31 * row + 17 * column) % 251 + 1 for column in range(N_PROMPT)] for row in range(batch)]
    run = decode(
        loaded, transport, prompts, n_steps + 1, sum_scale=scale, others_cpu_s=lambda: sum(map(_cpu_s, others))
    )
    if others and run.n_fallback:
        raise RuntimeError(f"{run.n_fallback} pairs were not computed by the worker")
    return Cost(run.seconds, run.cpu_s), run.token_ids


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user) + float(times.system)


def overhead_pct(pairs: Sequence[tuple[Cost, Cost]], kind: str) -> float:
    """Median over rounds of what the way through the relay costs more, in per cent."""
    ratios = [getattr(sharded, kind) / getattr(alone, kind) for alone, sharded in pairs]
    return 100 * (float(statistics.median(ratios)) - 1)


def as_keys(rounds: Rounds) -> dict[str, Any]:
    """The figures under the names that they are published with."""
    return {
        **{
            f"overhead{'_sum' if reply == 'sum' else ''}{infix}pct_{batch}": round(overhead_pct(pairs, kind), 2)
            for infix, kind in (("_", "wall_s"), ("_cpu_", "cpu_s"))
            for (reply, batch), pairs in rounds.items()
        },
        "machine": describe_machine(),
        "commit": describe_commit(),
    }


def as_table(rounds: Rounds) -> str:
    """The figures for people."""
    lines = [f"{'replies':<10}{'batch':<8}{'wall overhead':>16}{'CPU overhead':>16}"]
    for (reply, batch), pairs in rounds.items():
        lines.append(
            f"{reply:<10}{batch:<8}{overhead_pct(pairs, 'wall_s'):>14.1f} %{overhead_pct(pairs, 'cpu_s'):>14.1f} %"
        )
    return "\n".join([*lines, f"{describe_machine()}, commit {describe_commit()}"])


if __name__ == "__main__":
    main()
