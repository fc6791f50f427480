"""Measure where a decode step's time goes: the profile behind `bench_generate`, and what a sampled token costs.

`python -m benchmarks.shape.generate_profile [--batch N] [--sharded] [--sampler]`. cProfile slows Python down by about
half, so read it for shares and numbers of calls. The sampler is timed without it.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from backbone.engine.sampling.choice import RandomDraw, TokenHistory, sample
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers, Transport
from backbone.sampling_params import SamplingParams
from benchmarks.exact.sharded import two_workers
from benchmarks.shape.generate_decode import DEMO_MODEL, N_CTX, decode, story_beginnings

N_TOKENS = 65
N_ROWS_SHOWN = 45
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "greedy, 5 logprobs": SamplingParams(temperature=0.0, logprobs=5),
    "temperature 1": SamplingParams(seed=1),
    "temperature 0.7, top-p 0.95": SamplingParams(temperature=0.7, top_p=0.95, seed=1),
    "top-k 40, min-p 0.05": SamplingParams(temperature=0.7, top_k=40, min_p=0.05, seed=1),
    "all penalties, 5 logprobs": SamplingParams(
        temperature=0.7, repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1, logprobs=5, seed=1
    ),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1, help="sequences, 1 to 32 (default 1)")
    parser.add_argument("--sharded", action="store_true", help="experts in two local worker processes")
    parser.add_argument("--sampler", action="store_true", help="only the sampler's cost")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process (default 1)")
    options = parser.parse_args()
    if options.sampler:
        print_sampler_costs()
    else:
        print_profile(options.batch, options.threads, is_sharded=options.sharded)


def print_profile(batch: int, n_threads: int, *, is_sharded: bool) -> None:
    """Functions of this process by their own time, over a run of `batch` sequences."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvasir-bench-")))
        loaded = stack.enter_context(LoadedModel.open(DEMO_MODEL, n_slot=batch, n_ctx=N_CTX, n_threads=n_threads))
        transport: Transport = (
            stack.enter_context(two_workers(loaded, folder, n_threads)) if is_sharded else NoWorkers()
        )
        prompts = story_beginnings(loaded, batch)
        plain = decode(loaded, transport, prompts, N_TOKENS)
        profile = cProfile.Profile(time.perf_counter)
        with profile:
            decode(loaded, transport, prompts, N_TOKENS)
    print(f"{plain.seconds / (N_TOKENS - 1) * 1e3:.2f} ms a step without the profiler")
    pstats.Stats(profile).sort_stats("tottime").print_stats(N_ROWS_SHOWN)


def print_sampler_costs() -> None:
    """CPU microseconds a token, by parameters and size of the vocabulary."""
    generator = np.random.default_rng(0)
    for n_vocab in (2048, 151_936, 248_320):
        logits = (-2 * np.log(generator.permutation(n_vocab) + 1)).astype(np.float32)  # as steep as real text
        history = TokenHistory(range(100))
        for name, params in SAMPLINGS.items():
            print(f"{n_vocab:>7} tokens, {name:<28} {_sample_us(logits, history, params):8.0f} µs")


def _sample_us(logits: np.ndarray, history: TokenHistory, params: SamplingParams) -> float:
    times = []
    for position in range(50):
        start = time.thread_time()
        sample(logits, history, params, RandomDraw(1, 0, position))
        times.append(time.thread_time() - start)
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    main()
