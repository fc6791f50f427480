"""Measure what computing busy experts on the backbone brings: calls served against memory, and tokens a second at 20
ms.

`python -m benchmarks.bench_hot_cache [--json] [--quick]`. Shares: the demo model's own routing of the stories of
tests/data, against LRU and the best fixed set. Tokens a second: the same model over four emulated phones behind a round
trip of 20 ms, with the production dispatcher, samples and plan; every text is compared with the run without a cache.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from backbone.engine.dispatch.counters import Tally
from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.dispatch.hedging import DeadlineRule
from backbone.engine.dispatch.hot_cache import HotCache
from backbone.engine.serving.engine import Engine
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.sequence import Sequence as EngineSequence
from backbone.sampling_params import SamplingParams
from benchmarks.emulator.classes import PHONE, LinkClass, WorkerClass
from benchmarks.emulator.clock import CpuLoop
from benchmarks.emulator.swarm import EmulatedSwarm
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.routing.hot_cache_policies import Served, best_fixed, least_recently_used, planned
from benchmarks.routing.real_routing import DEMO, STORIES, demo_routing
from kvasir.experts import ExpertRange

ROUND_TRIP_S = 0.020
PATIENCE_S = 1000.0
NEVER = -100.0  # added to a logit
N_PROMPT = 8
SHARE_OF_122B = 256 * 256 / (3072 * 1024)  # of an expert's weights: how much sooner a phone is done with one


@dataclass(frozen=True, slots=True)
class Plan:
    """Cache sizes as parts of all experts, windows of text, and tokens before and in the timed part."""

    sizes: tuple[float, ...]
    n_windows: int | None
    batches: tuple[int, ...]
    n_warm: int
    n_timed: int


FULL = Plan((1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0), None, (1, 8), n_warm=192, n_timed=64)
QUICK = Plan((1 / 4, 1.0), 2, (1,), n_warm=24, n_timed=4)


@dataclass(frozen=True, slots=True)
class Speed:
    """One emulated run."""

    tok_s: float
    hot_share: float
    token_ids: list[list[int]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a smoke run whose figures mean nothing")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    figures = {**shares(plan), **speeds(plan), "machine": describe_machine(), "commit": describe_commit()}
    print(json.dumps(figures) if options.json else "\n".join(f"{key}: {value}" for key, value in figures.items()))


def shares(plan: Plan) -> dict[str, Any]:
    """Shares of calls by policy and cache size."""
    routing = demo_routing(plan.n_windows)
    n_expert = 1 + max(int(routed.max()) for routed in routing.values())
    found: dict[str, dict[str, Served]] = {"ours": {}, "ours_for_trips": {}, "lru": {}, "best_fixed": {}}
    for size in plan.sizes:
        n_cached, name = round(size * n_expert * len(routing)), f"{size:g}"
        found["ours"][name] = planned(routing, n_expert, n_cached, trip_s=1e-9, pair_s=1e-3)
        found["ours_for_trips"][name] = planned(routing, n_expert, n_cached, trip_s=ROUND_TRIP_S, pair_s=1e-5)
        found["lru"][name] = least_recently_used(routing, n_cached)
        found["best_fixed"][name] = best_fixed(routing, n_expert, n_cached)
    figures: dict[str, Any] = {
        f"share_{policy}": {size: round(one.share, 4) for size, one in by_size.items()}
        for policy, by_size in found.items()
    }
    for policy, by_size in found.items():
        figures[f"trips_saved_{policy}"] = {size: round(one.trips_saved, 4) for size, one in by_size.items()}
    figures["loads_per_token_lru"] = {size: round(one.loads_per_token, 3) for size, one in found["lru"].items()}
    figures["loads_per_token_ours"] = {size: round(one.loads_per_token, 3) for size, one in found["ours"].items()}
    return figures


def speeds(plan: Plan) -> dict[str, Any]:
    """Tokens a second at 20 ms, without a cache and with it. Raises RuntimeError when a text differs."""
    figures: dict[str, Any] = {"texts_identical": True}
    with LoadedModel.open(DEMO, n_slot=max(plan.batches), n_ctx=512, n_threads=1) as loaded:
        sizes = sum(layer.expert_bytes * loaded.card.n_expert for layer in loaded.card.layers)
        for batch in plan.batches:
            prompts = _prompts(loaded, batch)
            plain = emulate(loaded, prompts, plan, 0)
            runs = {f"{size:g}": emulate(loaded, prompts, plan, round(size * sizes)) for size in plan.sizes}
            if any(run.token_ids != plain.token_ids for run in runs.values()):
                raise RuntimeError("a text with hot experts differs from the one without")
            every = {"0": plain, **runs}
            figures[f"tok_s_{batch}"] = {size: round(run.tok_s, 2) for size, run in every.items()}
            figures[f"tok_s_gain_{batch}"] = {size: round(run.tok_s / plain.tok_s, 3) for size, run in runs.items()}
            figures[f"hot_share_{batch}"] = {size: round(run.hot_share, 4) for size, run in runs.items()}
    return figures


def _prompts(loaded: LoadedModel, batch: int) -> list[list[int]]:
    stories = [story for story in STORIES.read_text(encoding="utf-8").split("\n\n") if story.strip()]
    tokens = [loaded.tokenizer.encode(story.strip(), add_special=False, parse_special=False) for story in stories]
    return [tokens[number % len(tokens)][:N_PROMPT] for number in range(batch)]


def emulate(loaded: LoadedModel, prompts: Sequence[Sequence[int]], plan: Plan, budget_bytes: int) -> Speed:
    """Decode greedily over four phones, each with a quarter of every layer, on the emulator's clock."""
    loop = CpuLoop()
    card, quarter = loaded.card, loaded.card.n_expert // 4
    held = {
        f"phone-{n}": tuple(ExpertRange(layer, n * quarter, (n + 1) * quarter) for layer in card.moe_layers)
        for n in range(4)
    }
    phone = WorkerClass("phone", PHONE.pair_s * SHARE_OF_122B, PHONE.call_s)
    try:
        swarm = EmulatedSwarm(loop, loaded.store, held, phone, LinkClass(ROUND_TRIP_S))
        hot = HotCache(loaded.store, swarm, budget_bytes, plan_every=1 << 60) if budget_bytes else None
        return loop.run_until_complete(_decode(loop, loaded, swarm, hot, prompts, plan))
    finally:
        loop.close()


async def _decode(
    loop: CpuLoop,
    loaded: LoadedModel,
    swarm: EmulatedSwarm,
    hot: HotCache | None,
    prompts: Sequence[Sequence[int]],
    plan: Plan,
) -> Speed:
    n_tokens = plan.n_warm + plan.n_timed
    params = SamplingParams(0.0, max_tokens=n_tokens, logit_bias=dict.fromkeys(loaded.tokenizer.eog_ids, NEVER))
    tally = Tally()
    experts = ExpertDispatcher(
        loaded.store,
        swarm,
        deadlines=DeadlineRule(PATIENCE_S, PATIENCE_S),
        on_served=tally.add,
        hot=hot,
    )
    engine = Engine(loaded.model, experts, max_rows=sum(map(len, prompts)))
    sequences = [EngineSequence(str(number), ids, params, loaded.tokenizer) for number, ids in enumerate(prompts)]
    for sequence in sequences:
        engine.add(sequence)
    n_steps, began, before = 0, 0.0, (0, 0)
    while engine.has_work:
        if hot is not None and n_steps in {plan.n_warm // 2, plan.n_warm - 1}:
            with loop.free():  # another thread's work
                hot.replan()
        if n_steps == plan.n_warm:
            began, before = loop.time(), (tally.n_hot, tally.n_pairs)
        for event in await engine.step():
            if event.error is not None:
                raise event.error
        n_steps += 1
    if hot is not None:
        hot.close()
    tok_s = len(prompts) * (n_steps - plan.n_warm) / (loop.time() - began)
    hot_share = (tally.n_hot - before[0]) / (tally.n_pairs - before[1])
    return Speed(tok_s, hot_share, [sequence.output_ids for sequence in sequences])


if __name__ == "__main__":
    main()
