"""Several cores: one batch on a pool of kernel threads, or parts of it side by side on one-thread kernels.

`python -m benchmarks.bench_threads [--json] [--quick] [--threads N] [--folder DIR]`. The engine computes all experts
itself, on the model of `bench_overhead`; `parts` opens it once for each part, with a thread of Python for each. Wall
time, in turns with llama.cpp on as many threads; every token is compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.shape.generate_decode import Decoding, decode
from benchmarks.shape.model import QUICK as QUICK_SHAPE
from benchmarks.shape.model import RealShape, model_bytes, require_room, write_real_shape
from kvasir.kernels.native import usable_cores
from tests.oracles.llama_cpp import LlamaCpp

ONE, POOL, PARTS, LLAMACPP = "one_thread", "pool", "parts", "llamacpp"
N_PROMPT = 4
MOST_THREADS = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """The model's shape, decode steps by batch, rounds, and how many threads llama.cpp may have."""

    shape: RealShape
    n_steps: Mapping[int, int]
    n_rounds: int
    most_reference_threads: int = MOST_THREADS


FULL = Plan(replace(RealShape(), n_expert=64), {2: 24, 8: 12, 64: 6}, n_rounds=5)
QUICK = Plan(
    QUICK_SHAPE, {2: 3, 8: 3, 64: 2}, n_rounds=1, most_reference_threads=1
)  # its threads spin: on a busy machine for minutes

Prompts = list[list[int]]
Run = Callable[[Prompts, int], tuple[list[list[int]] | None, float]]  # tokens of each where compared, and seconds
Speeds = dict[int, dict[str, list[float]]]  # decoded tokens a second by batch, way and round


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a tiny model: a smoke run whose figures mean nothing")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="threads (default: every usable core)")
    parser.add_argument("--folder", type=Path, help="where to make the model (default: the system's temporary folder)")
    options = parser.parse_args()
    if not 1 <= options.threads <= MOST_THREADS:
        parser.error(f"--threads is {options.threads}; it must be 1 to {MOST_THREADS}")
    plan = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-", dir=options.folder) as folder:
        require_room(Path(folder), model_bytes(plan.shape))
        speeds = measure(write_real_shape(Path(folder) / "model.gguf", plan.shape), plan, options.threads)
    print(json.dumps(as_keys(speeds, options.threads)) if options.json else as_table(speeds, options.threads))


def measure(model: Path, plan: Plan, n_threads: int) -> Speeds:
    """Run all rounds on a model file. Raises RuntimeError when the ways' tokens differ."""
    with ExitStack() as stack:

        def opened(threads: int) -> LoadedModel:
            loaded = LoadedModel.open(model, n_slot=max(plan.n_steps), n_ctx=64, n_threads=threads)
            return stack.enter_context(loaded)

        llama_cpp = stack.enter_context(LlamaCpp(deadline_s=600.0))
        reference_threads = min(n_threads, plan.most_reference_threads)
        llama_cpp.load(model, n_ctx=64, n_sequence=max(plan.n_steps), n_threads=reference_threads)
        one, pool = opened(1), opened(n_threads)
        parts = [one, *(opened(1) for _ in range(n_threads - 1))]
        threads = stack.enter_context(ThreadPoolExecutor(n_threads))
        runs: dict[str, Run] = {
            ONE: lambda prompts, n: _timed(decode(one, NoWorkers(), prompts, n)),
            POOL: lambda prompts, n: _timed(decode(pool, NoWorkers(), prompts, n)),
            PARTS: lambda prompts, n: _side_by_side(threads, parts, prompts, n),
            LLAMACPP: lambda prompts, n: (None, llama_cpp.greedy(prompts, n).decode_s),
        }
        return _rounds(runs, plan)


def _timed(decoding: Decoding) -> tuple[list[list[int]], float]:
    return decoding.token_ids, decoding.seconds


def _side_by_side(
    threads: ThreadPoolExecutor, parts: Sequence[LoadedModel], prompts: Prompts, n_tokens: int
) -> tuple[list[list[int]], float]:
    """Every part decodes its share of the prompts at the same time; the slowest one's seconds count."""
    shares = [prompts[number :: len(parts)] for number in range(len(parts))]
    waiting = [
        threads.submit(decode, loaded, NoWorkers(), share, n_tokens)
        for loaded, share in zip(parts, shares, strict=True)
        if share
    ]
    done = [future.result() for future in waiting]
    token_ids: list[list[int]] = [[] for _ in prompts]
    for number, decoding in enumerate(done):
        token_ids[number :: len(parts)] = decoding.token_ids
    return token_ids, max(decoding.seconds for decoding in done)


def _rounds(runs: Mapping[str, Run], plan: Plan) -> Speeds:
    speeds: Speeds = {batch: {way: [] for way in runs} for batch in plan.n_steps}
    for number in range(plan.n_rounds + 1):
        for batch, n_steps in plan.n_steps.items():
            prompts = [[(31 * row + 17 * column) % 251 + 1 for column in range(N_PROMPT)] for row in range(batch)]
            expected: list[list[int]] | None = None
            for way, run in runs.items():
                token_ids, seconds = run(prompts, n_steps + 1)
                expected = expected or token_ids
                if token_ids is not None and token_ids != expected:
                    raise RuntimeError(f"the tokens of {way} at batch {batch} are not those of one thread")
                if number:  # the first round warms up
                    speeds[batch][way].append(batch * n_steps / seconds)
    return speeds


def ratio(speeds: Mapping[str, Sequence[float]], way: str, other: str) -> float:
    """Median over rounds of one way's speed by another's."""
    return statistics.median(a / b for a, b in zip(speeds[way], speeds[other], strict=True))


def as_keys(speeds: Speeds, n_threads: int) -> dict[str, Any]:
    """The figures under the names that they are published with."""
    return {
        **{f"speedup_{way}_{batch}": round(ratio(speeds[batch], way, ONE), 3) for way in (POOL, PARTS)
           for batch in speeds},
        **{f"ratio_parts_pool_{batch}": round(ratio(by_way, PARTS, POOL), 3) for batch, by_way in speeds.items()},
        **{f"ratio_pool_llamacpp_{batch}": round(ratio(by_way, POOL, LLAMACPP), 3) for batch, by_way in speeds.items()},
        "tok_s": {
            str(batch): {way: round(statistics.median(values), 2) for way, values in by_way.items()}
            for batch, by_way in speeds.items()
        },
        "threads": n_threads,
        "machine": describe_machine(),
        "commit": describe_commit(),
    }  # fmt: skip


def as_table(speeds: Speeds, n_threads: int) -> str:
    """The figures for people."""
    ways = list(next(iter(speeds.values())))
    lines = [f"{'tokens a second':<18}" + "".join(f"{way:>14}" for way in ways)]
    for batch, by_way in speeds.items():
        cells = "".join(f"{statistics.median(by_way[way]):>14.1f}" for way in ways)
        lines.append(f"{f'batch {batch}':<18}{cells}")
    return "\n".join([*lines, f"{n_threads} threads, {describe_machine()}, commit {describe_commit()}"])


if __name__ == "__main__":
    main()
