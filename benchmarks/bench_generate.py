"""Tokens a second of the demo model: in one process, over two local worker processes, and llama.cpp.

`python -m benchmarks.bench_generate [--json] [--quick] [--threads N]`. Greedy decoding at batch 1 and 32, without the
prompts' prefill; wall time, because sharded work crosses processes. Each round runs every engine once, one after the
other; figures are medians over rounds and ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers, Transport
from benchmarks.exact.sharded import two_workers
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.shape.generate_decode import DEMO_MODEL, N_CTX, decode, story_beginnings
from tests.oracles.llama_cpp import LlamaCpp

BATCHES = (1, 32)
IN_PROCESS, SHARDED = "in_process", "sharded"
LLAMA_CPP, REPACKED = "llamacpp", "llamacpp_repacked"  # weights in place, and its repacked copies of them
RATIOS = ((SHARDED, IN_PROCESS), (IN_PROCESS, LLAMA_CPP), (IN_PROCESS, REPACKED))

Prompts = Sequence[Sequence[int]]
Engine = Callable[[Prompts], float]  # tokens a second


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent of a run."""

    n_rounds: int
    n_tokens: int  # of each sequence


FULL = Plan(n_rounds=9, n_tokens=65)
QUICK = Plan(n_rounds=1, n_tokens=5)

Rounds = dict[int, dict[str, list[float]]]  # tokens a second by batch, engine and round


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="one short round: a smoke run whose figures mean nothing")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process (default 1)")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="a GGUF file (default: the demo model)")
    options = parser.parse_args()
    rounds = measure(options.model, options.threads, QUICK if options.quick else FULL)
    print(json.dumps(as_keys(rounds, options.threads)) if options.json else as_table(rounds, options.threads))


def measure(model: Path, n_threads: int, plan: Plan) -> Rounds:
    """Run all rounds. Raises RuntimeError when sharded tokens differ from in-process ones."""
    rounds: Rounds = {batch: {} for batch in BATCHES}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvasir-bench-")))
        loaded = stack.enter_context(LoadedModel.open(model, n_slot=max(BATCHES), n_ctx=N_CTX, n_threads=n_threads))
        edges = stack.enter_context(two_workers(loaded, folder, n_threads))
        prompts = story_beginnings(loaded, max(BATCHES))
        ours = _our_engines(loaded, edges, plan.n_tokens)
        for batch in BATCHES:
            engines: Mapping[str, Engine] = ours | {
                name: _llama_cpp(stack, model, batch, n_threads, plan.n_tokens, is_repacked=name == REPACKED)
                for name in (LLAMA_CPP, REPACKED)
            }
            for engine in engines.values():  # warm up
                engine(prompts[:batch])
            rounds[batch] = {name: [] for name in engines}
            for _ in range(plan.n_rounds):
                for name, engine in engines.items():
                    rounds[batch][name].append(engine(prompts[:batch]))
    return rounds


def _our_engines(loaded: LoadedModel, edges: Transport, n_tokens: int) -> dict[str, Engine]:
    expected: dict[int, list[list[int]]] = {}  # by batch

    def run(prompts: Prompts, transport: Transport, *, is_sharded: bool) -> float:
        run = decode(loaded, transport, prompts, n_tokens)
        if expected.setdefault(len(prompts), run.token_ids) != run.token_ids:
            raise RuntimeError("the sharded run's tokens are not the in-process run's")
        if is_sharded and run.n_fallback:
            raise RuntimeError(f"{run.n_fallback} pairs of the sharded run were not computed by workers")
        return run.tok_s

    return {
        IN_PROCESS: lambda prompts: run(prompts, NoWorkers(), is_sharded=False),
        SHARDED: lambda prompts: run(prompts, edges, is_sharded=True),
    }


def _llama_cpp(
    stack: ExitStack, model: Path, batch: int, n_threads: int, n_tokens: int, *, is_repacked: bool
) -> Engine:
    """llama.cpp in a process of its own, all sequences in one llama_decode a step."""
    process = stack.enter_context(LlamaCpp())
    process.load(model, n_ctx=N_CTX, n_sequence=batch, n_threads=n_threads, is_repacked=is_repacked)

    def run(prompts: Prompts) -> float:
        return len(prompts) * (n_tokens - 1) / process.greedy(prompts, n_tokens).decode_s

    return run


def ratio(by_engine: Mapping[str, Sequence[float]], one: str, other: str) -> float:
    """Median over rounds of one engine's speed by another's."""
    return statistics.median(a / b for a, b in zip(by_engine[one], by_engine[other], strict=True))


def as_keys(rounds: Rounds, n_threads: int) -> dict[str, Any]:
    """The figures under the names that they are published with."""
    engines = rounds[BATCHES[0]]
    return {
        "tok_s": {
            name: {str(batch): round(statistics.median(rounds[batch][name]), 1) for batch in BATCHES}
            for name in engines
        },
        "ratio": {
            f"{one}/{other}": {str(batch): round(ratio(rounds[batch], one, other), 3) for batch in BATCHES}
            for one, other in RATIOS
        },
        "threads": n_threads,
        "machine": describe_machine(),
        "commit": describe_commit(),
    }


def as_table(rounds: Rounds, n_threads: int) -> str:
    """The figures for people."""
    lines = [f"{'tokens/s':<30}" + "".join(f"{f'batch {batch}':>12}" for batch in BATCHES)]
    for name in rounds[BATCHES[0]]:
        medians = (statistics.median(rounds[batch][name]) for batch in BATCHES)
        lines.append(f"{name:<30}" + "".join(f"{median:>12.1f}" for median in medians))
    for one, other in RATIOS:
        ratios = (ratio(rounds[batch], one, other) for batch in BATCHES)
        lines.append(f"{f'{one}/{other}':<30}" + "".join(f"{value:>12.3f}" for value in ratios))
    lines += [f"{n_threads} threads in each process: ours, each of two workers, llama.cpp", describe_machine()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
