"""Measure what it costs to keep where each token was computed: decoding with traces and without, taken in turns.

`python -m benchmarks.bench_trace [--json] [--quick]`. Greedy decoding of the demo model over two local worker processes
and the backbone's own replica, at batch 1 and 32; every answer's last 64 tokens are traced, counted and put into the
text that is stored. Figures are this process's CPU time; ratios are taken within a round, medians over rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.serving.engine import Engine
from backbone.engine.serving.jobs import N_TRACED
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.sequence import Sequence as EngineSequence
from backbone.engine.serving.shares import ShareMeter
from backbone.engine.serving.token_sources import LastTokens
from backbone.engine.swarm.transport import Transport
from backbone.process.event_mapping import request_trace
from backbone.sampling_params import SamplingParams
from benchmarks.bench_generate import BATCHES
from benchmarks.exact.sharded import two_workers
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.shape.generate_decode import DEMO_MODEL, N_CTX, NEVER, story_beginnings

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent of a run."""

    n_rounds: int
    n_tokens: int  # of each sequence


FULL = Plan(n_rounds=15, n_tokens=64)
QUICK = Plan(n_rounds=1, n_tokens=5)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its tokens, the CPU time of its steps and of its traces, and the bytes of one stored trace."""

    token_ids: list[list[int]]
    step_s: float
    trace_s: float
    n_bytes: int


Rounds = dict[int, list[tuple[Run, Run]]]  # by batch: without and with traces


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="one short round: a smoke run whose figures mean nothing")
    options = parser.parse_args()
    figures = as_keys(measure(QUICK if options.quick else FULL))
    print(json.dumps(figures) if options.json else json.dumps(figures, indent=2))


def measure(plan: Plan) -> Rounds:
    """Run all rounds. Raises RuntimeError when tracing changed a token."""
    rounds: Rounds = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvasir-bench-")))
        loaded = stack.enter_context(LoadedModel.open(DEMO_MODEL, n_slot=max(BATCHES), n_ctx=N_CTX, n_threads=1))
        edges = stack.enter_context(two_workers(loaded, folder, 1))
        prompts = story_beginnings(loaded, max(BATCHES))
        for batch in BATCHES:
            decode(loaded, edges, prompts[:batch], plan.n_tokens, is_tracing=True)  # warm up
            rounds[batch] = [_round(loaded, edges, prompts[:batch], plan, number) for number in range(plan.n_rounds)]
    return rounds


def _round(loaded: LoadedModel, edges: Transport, prompts: Prompts, plan: Plan, number: int) -> tuple[Run, Run]:
    """Both ways; each goes first in every other round."""
    order = (False, True) if number % 2 else (True, False)
    runs = {is_tracing: decode(loaded, edges, prompts, plan.n_tokens, is_tracing=is_tracing) for is_tracing in order}
    if runs[False].token_ids != runs[True].token_ids:
        raise RuntimeError("with traces the tokens are others")
    return runs[False], runs[True]


def decode(loaded: LoadedModel, edges: Transport, prompts: Prompts, n_tokens: int, *, is_tracing: bool) -> Run:
    """Prefill the prompts in one step and decode them together, as the service does, with its meter."""
    never = dict.fromkeys(loaded.tokenizer.eog_ids, NEVER)
    params = SamplingParams(temperature=0.0, max_tokens=n_tokens, logit_bias=never)
    meter = ShareMeter(is_tracing=is_tracing)
    experts = ExpertDispatcher(loaded.store, edges, on_served=meter.add)
    engine = Engine(loaded.model, experts, max_rows=sum(map(len, prompts)), on_chunks=meter.begin)
    kept = {
        EngineSequence(str(n), ids, params, loaded.tokenizer): LastTokens(N_TRACED) for n, ids in enumerate(prompts)
    }
    for sequence in kept:
        engine.add(sequence)
    started = time.process_time()
    asyncio.run(_steps(engine, meter, kept))
    stepped = time.process_time()
    texts = [request_trace(last.trace(), str).to_text() for last in kept.values()] if is_tracing else [""]
    ended = time.process_time()
    return Run([s.output_ids for s in kept], stepped - started, ended - stepped, max(map(len, texts)))


async def _steps(engine: Engine, meter: ShareMeter, kept: dict[EngineSequence, LastTokens]) -> None:
    while engine.has_work:
        n_tokens: Counter[EngineSequence] = Counter()
        for event in await engine.step():
            if event.error is not None:
                raise event.error
            n_tokens[event.sequence] += 1
        for sequence, _, tokens, _ in meter.end(n_tokens):
            for token in tokens:
                kept[sequence].add(token)


def as_keys(rounds: Rounds) -> dict[str, Any]:
    """The figures that are published, by batch."""
    return {
        "machine": describe_machine(),
        "commit": describe_commit(),
        "ratio_cpu_traced": _by_batch(rounds, lambda off, on: (on.step_s + on.trace_s) / off.step_s),
        "ratio_cpu_steps": _by_batch(rounds, lambda off, on: on.step_s / off.step_s),
        "us_of_trace_per_token": _by_batch(
            rounds, lambda off, on: 1e6 * on.trace_s / sum(len(ids) for ids in on.token_ids)
        ),
        "bytes_stored": _by_batch(rounds, lambda off, on: float(on.n_bytes)),
    }


def _by_batch(rounds: Rounds, figure: Any) -> dict[str, float]:
    return {
        str(batch): round(statistics.median(figure(off, on) for off, on in pairs), 4) for batch, pairs in rounds.items()
    }


if __name__ == "__main__":
    main()
