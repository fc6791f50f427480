"""Attention over long contexts at the 122B's width: beside llama.cpp at 8k tokens, and by itself up to 32k.

`python -m benchmarks.bench_long_context [--json] [--quick] [--threads N] [--folder DIR]`. One recurrent layer and one
of full attention, with few small experts, so that attention counts. CPU time of each process, one after the other in
each round. A ratio above 1 means that ours is faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from benchmarks.bench_vs_llamacpp import Cost
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.shape.generate_decode import decode
from benchmarks.shape.model import QUICK as QUICK_SHAPE
from benchmarks.shape.model import RealShape, model_bytes, require_room, write_real_shape
from kvasir.kernels.rowops import NativeRowOps
from tests.oracles.llama_cpp import LlamaCpp

N_SHORT = 16  # tokens of the prompt beside which the long one is seen
N_ROWS = 128  # of a prompt, at the end of a context
STATE_ROWS = (1, 512)  # of one sequence through a recurrent layer's state


@dataclass(frozen=True, slots=True)
class Plan:
    """The model, the long prompt, decode steps after a prompt, rounds, and the contexts of attention by itself."""

    shape: RealShape
    n_prompt: int
    n_steps: int
    n_rounds: int
    contexts: tuple[int, ...]


FULL = Plan(
    RealShape(n_layer=2, interval=2, n_expert=8, n_used=2, d_ff=256), 8160, 16, n_rounds=3, contexts=(512, 8192, 32768)
)
QUICK = Plan(QUICK_SHAPE, 200, 2, n_rounds=1, contexts=(512, 1024))


@dataclass(frozen=True, slots=True)
class Round:
    """What the short and the long prompt cost, ours and llama.cpp's."""

    ours: tuple[Cost, Cost]
    theirs: tuple[Cost, Cost]

    def decode_ratio(self, prompt: int) -> float:
        """Their CPU seconds of decode steps by ours; prompt 0 is the short one."""
        return self.theirs[prompt].decode_cpu_s / self.ours[prompt].decode_cpu_s

    @property
    def context_ratio(self) -> float:
        """The same of what the long context costs more: attention alone."""
        ours, theirs = (long.decode_cpu_s - short.decode_cpu_s for short, long in (self.ours, self.theirs))
        return theirs / max(ours, 1e-6)

    @property
    def prefill_ratio(self) -> float:
        """Their CPU seconds of the long prompt by ours."""
        return self.theirs[1].prefill_cpu_s / self.ours[1].prefill_cpu_s


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
        rounds = measure(write_real_shape(Path(folder) / "model.gguf", plan.shape), plan, options.threads)
    keys = as_keys(rounds, plan, attention_ms(plan, options.threads), state_ms(plan, options.threads))
    print(json.dumps(keys) if options.json else "\n".join(f"{key:<24}{value}" for key, value in keys.items()))


def measure(model: Path, plan: Plan, n_threads: int) -> list[Round]:
    """Both engines over both prompts, in turns; the first pass over the short one warms up."""
    n_ctx = plan.n_prompt + plan.n_steps + 2
    prompts = [[(31 * n) % 251 + 1 for n in range(n_tokens)] for n_tokens in (N_SHORT, plan.n_prompt)]
    with (
        LoadedModel.open(model, n_slot=1, n_ctx=n_ctx, n_threads=n_threads) as loaded,
        LlamaCpp(deadline_s=900.0) as llama_cpp,
    ):
        llama_cpp.load(model, n_ctx=n_ctx, n_threads=n_threads)

        def ours(prompt: Sequence[int]) -> Cost:
            run = decode(loaded, NoWorkers(), [prompt], plan.n_steps + 1)
            return Cost(run.prefill_cpu_s, run.cpu_s)

        def theirs(prompt: Sequence[int]) -> Cost:
            run = llama_cpp.greedy([prompt], plan.n_steps + 1)
            return Cost(run.prefill_cpu_s, run.decode_cpu_s)

        ours(prompts[0]), theirs(prompts[0])
        return [
            Round((ours(prompts[0]), ours(prompts[1])), (theirs(prompts[0]), theirs(prompts[1])))
            for _ in range(plan.n_rounds)
        ]


def attention_ms(plan: Plan, n_threads: int) -> dict[str, dict[str, float]]:
    """CPU milliseconds of one layer's attention, of one row and of N_ROWS rows of a prompt, by the context's length."""
    ops, shape, rng = NativeRowOps(n_threads=n_threads), plan.shape, np.random.default_rng(0)
    figures: dict[str, dict[str, float]] = {"decode": {}, f"rows_{N_ROWS}": {}}
    for n_ctx in plan.contexts:
        keys, values = rng.standard_normal((2, 1, shape.n_kv_head, n_ctx, shape.d_head), np.float32)
        for n_rows, by_context in zip((1, N_ROWS), figures.values(), strict=True):
            query = rng.standard_normal((n_rows, shape.n_head, shape.d_head), np.float32)
            taken = []
            for _ in range(5 if n_rows == 1 else 2):
                started = time.process_time()
                ops.attention(query, keys, values, [(0, 0, n_rows, n_ctx - n_rows)], shape.d_head**-0.5)
                taken.append(1e3 * (time.process_time() - started))
            by_context[str(n_ctx)] = round(min(taken), 3)
    return figures


def state_ms(plan: Plan, n_threads: int) -> dict[str, float]:
    """CPU milliseconds of one recurrent layer's delta rule, by rows of one sequence; the least of three calls."""
    ops, shape, rng = NativeRowOps(n_threads=n_threads), plan.shape, np.random.default_rng(0)
    n_v_head, d_state = shape.n_v_head, shape.d_state
    figures = {}
    for n_rows in STATE_ROWS:
        q, k = rng.standard_normal((2, n_rows, shape.n_k_head, d_state), np.float32) / np.float32(d_state**0.5)
        v = rng.standard_normal((n_rows, n_v_head, d_state), np.float32)
        decay, beta = rng.random((2, n_rows, n_v_head), np.float32)
        state, taken = np.zeros((1, n_v_head, d_state, d_state), np.float32), []
        for _ in range(3):
            started = time.process_time()
            ops.delta_rule(q, k, v, -decay, beta, state, [(0, 0, n_rows, 0)])
            taken.append(1e3 * (time.process_time() - started))
        figures[str(n_rows)] = round(min(taken), 3)
    return figures


def as_keys(
    rounds: Sequence[Round], plan: Plan, attention: dict[str, dict[str, float]], state: dict[str, float]
) -> dict[str, Any]:
    """The figures under the names that they are published with."""
    median = statistics.median
    ours = [(one.ours[1].decode_cpu_s / plan.n_steps, one.ours[1].prefill_cpu_s) for one in rounds]
    return {
        "ratio_ctx_short": round(median(one.decode_ratio(0) for one in rounds), 3),
        "ratio_ctx8k": round(median(one.decode_ratio(1) for one in rounds), 3),
        "ratio_attention_ctx8k": round(median(one.context_ratio for one in rounds), 3),
        "ratio_pp8k": round(median(one.prefill_ratio for one in rounds), 3),
        "step_ms_ctx8k": round(1e3 * median(step for step, _ in ours), 2),
        "pp8k_s": round(median(prefill for _, prefill in ours), 3),
        "attention_ms": attention,
        "state_ms": state,
        "n_prompt": plan.n_prompt,
        "machine": describe_machine(),
        "commit": describe_commit(),
    }


if __name__ == "__main__":
    main()
