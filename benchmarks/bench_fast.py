"""What the dense path's modes cost and keep: exact, fast as measured here, copied in bf16, and torch in f32.

`python -m benchmarks.bench_fast [--json] [--quick] [--threads N] [--folder DIR]`. One real-shape model, all experts in
this process and the same in all modes; modes take turns, CPU time. A ratio above 1 means faster than exact mode, so
what is below it is the price of the other mode, and 1 over it what exact mode saves.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from backbone.engine.ops.fast_ops import FastOps
from backbone.engine.serving.loaded_model import Arithmetic, Dense, LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.shape.batch_dependence import BatchDependence, batch_dependence
from benchmarks.shape.generate_decode import decode
from benchmarks.shape.model import QUICK as QUICK_SHAPE
from benchmarks.shape.model import RealShape, model_bytes, require_room, write_real_shape

EXACT, FAST, COPIED, FLOAT = "exact", "fast", "copied", "float"
COPIED_ROWS = 12
N_PROMPT = 4
PREFILL = "pp"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: decode steps by batch, the tokens of the long prompt, rounds, and the model's shape."""

    shape: RealShape
    n_steps: Mapping[int, int]
    n_prefill: int
    n_rounds: int

    @property
    def n_ctx(self) -> int:
        """Tokens a sequence needs at most."""
        return max(self.n_prefill, N_PROMPT + max(self.n_steps.values()), 32) + 2

    @property
    def names(self) -> dict[str, str]:
        """Published names of the cases."""
        return {str(batch): str(batch) for batch in self.n_steps} | {PREFILL: f"pp{self.n_prefill}"}


FULL = Plan(RealShape(), {1: 8, 8: 4, 32: 2}, n_prefill=512, n_rounds=3)
QUICK = Plan(QUICK_SHAPE, {1: 2, 8: 2, 32: 2}, n_prefill=64, n_rounds=1)

Costs = dict[str, dict[str, list[float]]]  # CPU seconds by case, mode and round


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured."""

    costs: Costs
    dependence: Mapping[str, BatchDependence]
    fast_name: str
    copies_bytes: Mapping[str, int]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a tiny model: a smoke run whose figures mean nothing")
    parser.add_argument("--threads", type=int, default=1, help="threads of each mode (default 1)")
    parser.add_argument("--folder", type=Path, help="where to make the model (default: the system's temporary folder)")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-", dir=options.folder) as folder:
        require_room(Path(folder), model_bytes(plan.shape))
        figures = measure(write_real_shape(Path(folder) / "model.gguf", plan.shape), plan, options.threads)
    print(json.dumps(as_keys(figures, plan, options.threads)) if options.json else as_table(figures, plan))


def measure(model: Path, plan: Plan, n_threads: int) -> Figures:
    """Open the model in every mode and run all rounds."""
    n_slot = max(plan.n_steps)
    modes = {EXACT: (Dense.KX1, 0), FAST: (Dense.FAST, 0), COPIED: (Dense.FAST, COPIED_ROWS), FLOAT: (Dense.FLOAT, 0)}
    with ExitStack() as stack:
        loaded = {
            name: stack.enter_context(
                LoadedModel.open(
                    model,
                    n_slot=n_slot,
                    n_ctx=plan.n_ctx,
                    arithmetic=Arithmetic(dense, fast_rows=fast_rows),
                    n_threads=n_threads,
                )
            )
            for name, (dense, fast_rows) in modes.items()
        }
        torch.set_num_threads(n_threads)  # the mode that was opened last had set it for all
        costs = _rounds(loaded, plan)
        ops = {name: model.model.ops for name, model in loaded.items()}
        return Figures(
            costs,
            {name: batch_dependence(model, n_slot) for name, model in loaded.items()},
            ops[FAST].name,
            {name: one.copy_bytes for name, one in ops.items() if isinstance(one, FastOps)},
        )


def _rounds(loaded: Mapping[str, LoadedModel], plan: Plan) -> Costs:
    costs: Costs = {case: {name: [] for name in loaded} for case in plan.names}
    for number in range(plan.n_rounds + 1):
        for name, model in loaded.items():
            cost = {
                str(batch): decode(model, NoWorkers(), _prompts(batch, N_PROMPT), n_steps + 1).cpu_s
                for batch, n_steps in plan.n_steps.items()
            }
            cost[PREFILL] = decode(model, NoWorkers(), _prompts(1, plan.n_prefill), 2).prefill_cpu_s
            if number:  # the first round warms up
                for case, seconds in cost.items():
                    costs[case][name].append(seconds)
    return costs


def _prompts(batch: int, n_tokens: int) -> list[list[int]]:
    """Different token ids in every prompt, so that the router chooses different experts."""
    return [[(31 * row + 17 * column) % 251 + 1 for column in range(n_tokens)] for row in range(batch)]


def ratio(costs: Costs, case: str, mode: str) -> float:
    """Median over rounds of a mode's speed by exact mode's."""
    pairs = zip(costs[case][EXACT], costs[case][mode], strict=True)
    return statistics.median(exact / other for exact, other in pairs)


def as_keys(figures: Figures, plan: Plan, n_threads: int) -> dict[str, Any]:
    """The figures under the names that they are published with."""
    return {
        **{
            f"ratio_{mode}_{name}": round(ratio(figures.costs, case, mode), 3)
            for mode in (FAST, COPIED, FLOAT)
            for case, name in plan.names.items()
        },
        "batch_invariant": {name: found.is_invariant for name, found in figures.dependence.items()},
        "logit_change": {name: float(f"{found.largest_change:.2e}") for name, found in figures.dependence.items()},
        "fast_mode": figures.fast_name,
        "copies_gb": {name: round(n_bytes / 1e9, 3) for name, n_bytes in figures.copies_bytes.items()},
        "threads": n_threads,
        "machine": describe_machine(),
        "commit": describe_commit(),
    }


def as_table(figures: Figures, plan: Plan) -> str:
    """The figures for people."""
    modes = list(figures.dependence)
    lines = [f"{'speed by exact mode':<22}" + "".join(f"{mode:>12}" for mode in modes)]
    for case, name in plan.names.items():
        lines.append(f"{name:<22}" + "".join(f"{ratio(figures.costs, case, mode):>12.2f}" for mode in modes))
    lines.append(
        f"{'batch invariant':<22}" + "".join(f"{figures.dependence[mode].is_invariant!s:>12}" for mode in modes)
    )
    changes = "".join(f"{figures.dependence[mode].largest_change:>12.2e}" for mode in modes)
    return "\n".join([*lines, f"{'largest logit change':<22}{changes}", figures.fast_name, describe_machine()])


if __name__ == "__main__":
    main()
