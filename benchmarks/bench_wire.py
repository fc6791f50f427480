"""Bytes that a token of the 122B shape takes on the wire, both ways, by how workers answer and who holds what.

`python -m benchmarks.bench_wire [--json] [--quick] [--folder DIR]`. Production placement and frames of steps of 64
rows; rows, expert outputs and so the packed widths of sums are a real-shape model's own. Its random router has no
habits, so the choices are made (`made_routing`) with the skew and the co-activation that the demo model's trained
router has on the stories of tests/data. Beside the bytes: what sums cost in exactness.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backbone.engine.dispatch.call_samples import CallSamples
from backbone.engine.dispatch.co_activation import order_experts
from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.dispatch.hot_plan import Costs, HotExperts, plan_hot
from backbone.engine.ops.interface import Routing
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.sum_calibration import calibrate
from backbone.engine.swarm.sum_scale import SumScale
from backbone.engine.swarm.transport import NoWorkers
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.routing.made_routing import MadeRouter, fitted_router, habits_of
from benchmarks.routing.real_routing import Routed, calls_together, demo_routing, workers_per_row
from benchmarks.routing.wire_bytes import LayerRows, Reply, Traffic, bits_of_value, call_traffic, workers_of_layer
from benchmarks.routing.wire_errors import errors_at_shape, measure_errors
from benchmarks.shape.model import QUICK as QUICK_SHAPE
from benchmarks.shape.model import RealShape, model_bytes, require_room, write_real_shape
from kvasir.experts import FloatRows
from tests.oracles.model_runs import forward

N_LAYER_122B = 48
WORKERS = (4, 8, 32)
DEMO_WORKERS = (2, 4)
TRAIN_SEED, TEST_SEED = 1, 2
WAYS = ("", "_colocated", "_hot", "_colocated_hot")


@dataclass(frozen=True, slots=True)
class Plan:
    """The model, made layers, rows of a step, steps, rows that order and plan are learned from, and hot parts."""

    shape: RealShape
    n_layer: int
    n_rows: int
    n_steps: int
    n_train: int
    hot_parts: tuple[float, ...]
    n_windows: int | None


HOT_PART = 0.3  # of all experts, in the figures that say "hot": 22 GB of 74
FULL = Plan(RealShape(n_layer=1), 4, 64, 4, 8192, (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5), None)
QUICK = Plan(replace(QUICK_SHAPE, n_layer=1), 2, 16, 1, 512, (0.0, HOT_PART), 2)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A made layer: its calls by the experts' own numbers and by their places in the co-activation order."""

    calls: list[LayerRows]
    colocated: list[LayerRows]
    train: Routed
    place: np.ndarray  # [n_expert] of each expert in the order


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a tiny model: a smoke run whose figures mean nothing")
    parser.add_argument("--folder", type=Path, help="where to make the model (default: the system's temporary folder)")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-", dir=options.folder) as folder:
        require_room(Path(folder), model_bytes(plan.shape))
        figures = measure(Path(folder), plan)
    figures |= {**measure_errors(plan.n_windows), "machine": describe_machine(), "commit": describe_commit()}
    print(json.dumps(figures) if options.json else "\n".join(f"{key}: {value}" for key, value in figures.items()))


def measure(folder: Path, plan: Plan) -> dict[str, Any]:
    """All bytes; megabytes are of 10^6."""
    demo = demo_routing(plan.n_windows)
    n_expert_demo = 1 + max(int(routed.max()) for routed in demo.values())
    wanted = habits_of(demo.values(), n_expert_demo)
    router = fitted_router(wanted, plan.shape.n_expert, plan.shape.n_used)
    model = write_real_shape(folder / "model.gguf", plan.shape)
    with LoadedModel.open(model, n_slot=1, n_ctx=plan.n_rows * plan.n_steps + 8) as loaded:
        rows, scale = _moe_rows(loaded, plan.n_rows * plan.n_steps), calibrate(loaded)
        cases = [_case(loaded, router, layer, rows, scale, plan) for layer in range(plan.n_layer)]
        errors = errors_at_shape(loaded, cases[0].calls[0], rows)
        coarse = [[_with_bits(call, scale, scale.bits - 1) for call in case.colocated] for case in cases]
    hot = {part: hot_of(cases, plan, part) for part in plan.hot_parts}
    made = habits_of([case.train for case in cases], plan.shape.n_expert)
    return {
        **_by_way(cases, hot[HOT_PART], plan),
        **_by_hot_part(cases, hot, plan),
        "mb_one_bit_less": _one_bit_less(cases, coarse, hot[HOT_PART], plan),
        "busy_share": {"demo": round(wanted.busy_share, 4), "made": round(made.busy_share, 4)},
        "demo_workers_per_row": {str(n): workers_per_row(demo, n_expert_demo, n) for n in DEMO_WORKERS},
        "lift": {"demo": round(wanted.lift, 3), "made": round(made.lift, 3)},
        **errors,
    }


def _case(loaded: LoadedModel, router: MadeRouter, layer: int, rows: FloatRows, scale: SumScale, plan: Plan) -> Case:
    train, _ = router.route(layer, plan.n_train, TRAIN_SEED)
    routed, weights = router.route(layer, len(rows), TEST_SEED)
    order = order_experts(calls_together(train, router.n_expert))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    kernel, experts = loaded.store.kernel, loaded.store.layer(0)
    calls = []
    for first in range(0, len(rows), plan.n_rows):
        part = slice(first, first + plan.n_rows)
        encoded = kernel.encode_rows(np.ascontiguousarray(rows[part]))
        pair_rows = np.repeat(np.arange(plan.n_rows, dtype=np.int32), router.n_used)
        outputs = experts.compute(encoded, pair_rows, np.ascontiguousarray(routed[part].reshape(-1)))
        calls.append(LayerRows(encoded, routed[part], weights[part], scale.exponents(0, weights[part]), outputs))
    colocated = [replace(call, routed=place[call.routed].astype(np.int32)) for call in calls]
    return Case(calls, colocated, train, place)


def _with_bits(call: LayerRows, scale: SumScale, bits: int) -> LayerRows:
    return replace(call, exponents=replace(scale, bits=bits).exponents(0, call.weights))


def hot_of(cases: list[Case], plan: Plan, part: float) -> HotExperts:
    """The production plan for calls of a step's rows, where pairs are what costs."""
    n_expert = plan.shape.n_expert
    samples = CallSamples(len(cases), n_expert, every=1)
    for layer, case in enumerate(cases):
        for first in range(0, len(case.train), plan.n_rows):
            samples.add(layer, case.train[first : first + plan.n_rows])
    shape = len(cases), n_expert
    costs = Costs(np.full(shape, 1e-9), np.full(shape, 1e-3), own_s=0.0)
    calls = [samples.calls(layer) for layer in range(len(cases))]
    return plan_hot(calls, costs, [1] * len(cases), round(part * len(cases) * n_expert))


def _traffic(cases: list[Case], n_workers: int, reply: Reply, *, colocated: bool, hot: HotExperts | None) -> Traffic:
    total = Traffic()
    for layer, case in enumerate(cases):
        coverage = workers_of_layer(n_workers, len(case.place))
        chosen = np.array(sorted(hot[layer]), np.int64) if hot is not None else np.zeros(0, np.int64)
        here = frozenset((case.place[chosen] if colocated else chosen).tolist())
        for call in case.colocated if colocated else case.calls:
            total += call_traffic(call, coverage, reply, here)
    return total


def _per_token(traffic: Traffic) -> dict[str, float]:
    """Megabytes of a token through all 48 layers. Each call is of one made layer."""
    tokens = traffic.n_rows / N_LAYER_122B
    down, up = traffic.down / tokens / 1e6, traffic.up / tokens / 1e6
    return {"down": round(down, 4), "up": round(up, 4), "total": round(down + up, 4)}


def _by_way(cases: list[Case], hot: HotExperts, plan: Plan) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for n_workers in _workers(plan):
        by_way, sent = {}, {}
        for reply in Reply:
            for way in WAYS:
                found = _traffic(
                    cases, n_workers, reply, colocated="colocated" in way, hot=hot if "hot" in way else None
                )
                by_way[reply + way] = _per_token(found)
                sent[way.lstrip("_") or "plain"] = round(found.n_sent_rows / found.n_rows, 3)
                if reply is Reply.SUM and not way:
                    bits = bits_of_value(found.up, found.n_sent_rows, plan.shape.d_model)
                    figures[f"sum_bits_{n_workers}"] = round(bits, 2)
        figures[f"mb_per_token_{n_workers}"] = by_way
        figures[f"workers_per_row_{n_workers}"] = sent
    return figures


def _by_hot_part(cases: list[Case], hot: dict[float, HotExperts], plan: Plan) -> dict[str, Any]:
    """At the fewest workers, with sums and co-location: bytes by how much of the model is hot."""
    found = {
        f"{part:g}": _traffic(cases, _workers(plan)[0], Reply.SUM, colocated=True, hot=plan_of_part)
        for part, plan_of_part in hot.items()
    }
    totals = {part: _per_token(traffic)["total"] for part, traffic in found.items()}
    shares = {part: round(traffic.n_hot / traffic.n_pairs, 4) for part, traffic in found.items()}
    return {
        "mb_by_hot_part": totals,
        "hot_share_by_part": shares,
        "hot_part": HOT_PART,
        "mb_per_token": totals[f"{HOT_PART:g}"],
    }


def _one_bit_less(cases: list[Case], coarse: list[list[LayerRows]], hot: HotExperts, plan: Plan) -> float:
    """The last way's total with a unit of sums twice as large."""
    other = [replace(case, colocated=calls) for case, calls in zip(cases, coarse, strict=True)]
    found = _traffic(other, _workers(plan)[0], Reply.SUM, colocated=True, hot=hot)
    return _per_token(found)["total"]


def _workers(plan: Plan) -> tuple[int, ...]:
    return tuple(n for n in WORKERS if plan.shape.n_expert % n == 0 and plan.shape.n_expert > n)


class _Rows:
    """Keeps the rows that a layer's experts are asked with."""

    def __init__(self, dispatcher: ExpertDispatcher) -> None:
        self._dispatcher = dispatcher
        self.rows: list[FloatRows] = []

    def submit(self, layer: int, rows: torch.Tensor, routing: Routing) -> Awaitable[torch.Tensor]:
        """See ExpertCaller."""
        self.rows.append(rows.numpy().copy())
        return self._dispatcher.submit(layer, rows, routing)


def _moe_rows(loaded: LoadedModel, n_rows: int) -> FloatRows:
    listener = _Rows(ExpertDispatcher(loaded.store, NoWorkers()))
    slot = loaded.model.cache.allocate()
    tokens = np.random.default_rng(3).integers(0, 256, n_rows).tolist()
    forward(loaded.model, listener, [(slot, tokens)])
    loaded.model.cache.free(slot)
    return np.concatenate(listener.rows)


if __name__ == "__main__":
    main()
