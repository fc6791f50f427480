"""The service under 1, 8 and 64 concurrent requests over HTTP, beside the bare engine and llama.cpp.

`python -m benchmarks.bench_serve [--json] [--quick] [--threads N]`. The demo model, greedy, every request the same
number of tokens. Each round gives the same load to each: the service started by `manage.py up` (a backbone that
computes the experts itself), the engine in this process, llama.cpp with as many sequences. Wall time from the first
request's start to the last one's end, prefill included; medians over rounds, ratios taken within a round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.serving.engine import Engine
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.sequence import Sequence as EngineSequence
from backbone.engine.swarm.transport import NoWorkers
from backbone.sampling_params import SamplingParams
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.serve.client import Stream, run_load
from benchmarks.shape.generate_decode import DEMO_MODEL, NEVER, story_beginnings
from tests.oracles.llama_cpp import LlamaCpp
from tests.swarm.service_process import ServiceProcess, service_process

CONCURRENCY = (1, 8, 64)
N_CTX = 192
STEP_ROWS = 256  # as the service's default


@dataclass(frozen=True, slots=True)
class Plan:
    """The extent of a run."""

    n_rounds: int
    n_tokens: int  # of each request


FULL = Plan(n_rounds=5, n_tokens=128)
QUICK = Plan(n_rounds=1, n_tokens=8)


@dataclass(slots=True)
class Rounds:
    """Figures of one concurrency, by round; the streams of all rounds together."""

    service: list[float] = field(default_factory=list)  # tokens a second
    engine: list[float] = field(default_factory=list)
    llamacpp: list[float] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)  # of the service's processes, client and bare engine
    n_tokens: int = 0  # of all rounds

    def ratio(self) -> float:
        """The service by the engine, median over rounds."""
        return statistics.median(a / b for a, b in zip(self.service, self.engine, strict=True))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="one short round: a smoke run whose figures mean nothing")
    parser.add_argument("--threads", type=int, default=1, help="threads of each engine (default 1)")
    options = parser.parse_args()
    found = measure(options.threads, QUICK if options.quick else FULL)
    figures = as_keys(found, options.threads)
    print(json.dumps(figures) if options.json else as_table(figures, found))


def measure(n_threads: int, plan: Plan) -> dict[int, Rounds]:
    """Run all rounds at all concurrencies."""
    found: dict[int, Rounds] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvasir-bench-")))
        loaded = stack.enter_context(
            LoadedModel.open(DEMO_MODEL, n_slot=max(CONCURRENCY), n_ctx=N_CTX, n_threads=n_threads)
        )
        prompts = story_beginnings(loaded, max(CONCURRENCY))
        prompts = [prompts[number % len(prompts)] for number in range(max(CONCURRENCY))]
        service = stack.enter_context(_service(folder, n_threads))
        for n in CONCURRENCY:
            llama = stack.enter_context(LlamaCpp())
            llama.load(DEMO_MODEL, n_ctx=N_CTX, n_sequence=n, n_threads=n_threads)
            found[n] = _rounds(prompts[:n], plan, loaded, service, llama)
            llama.close()
    return found


def _service(folder: Path, n_threads: int) -> Any:
    return service_process(
        folder,
        "--max-tokens=16",  # of the sample, which comes first
        KVASIR_LOCAL_WORKERS="0",
        KVASIR_THREADS=str(n_threads),
        KVASIR_CTX=str(N_CTX),
        KVASIR_SLOTS=str(max(CONCURRENCY)),
        KVASIR_KEY_RATE="1000000",
        KVASIR_ADDRESS_RATE="1000000",
    )


def _rounds(
    prompts: Sequence[list[int]], plan: Plan, loaded: LoadedModel, service: ServiceProcess, llama: LlamaCpp
) -> Rounds:
    rounds = Rounds()
    n_all = len(prompts) * plan.n_tokens

    def by_llama() -> float:
        run = llama.greedy(prompts, plan.n_tokens)
        return n_all / (run.prefill_s + run.decode_s)

    load = _http_load(prompts, plan.n_tokens, loaded, service)
    for is_measured in [False, *[True] * plan.n_rounds]:
        before, began = _cpu_s(service), time.process_time()
        streams = load()
        used = {name: after - before[name] for name, after in _cpu_s(service).items()}
        used["client"] = time.process_time() - began
        tok_s = n_all / (max(s.came[-1] for s in streams) - min(s.sent for s in streams))
        began = time.process_time()
        engine_tok_s = _engine_tok_s(prompts, plan.n_tokens, loaded)
        used["bare engine"] = time.process_time() - began
        figures = tok_s, engine_tok_s, by_llama()
        if is_measured:
            rounds.streams += streams
            rounds.cpu_s = {name: rounds.cpu_s.get(name, 0.0) + seconds for name, seconds in used.items()}
            rounds.n_tokens += n_all
            for kept, figure in zip((rounds.service, rounds.engine, rounds.llamacpp), figures, strict=True):
                kept.append(figure)
    return rounds


def _cpu_s(service: ServiceProcess) -> dict[str, float]:
    """CPU seconds of the service's processes so far; nothing where the system does not tell."""
    found = {}
    for name, pid in service.pids().items():
        status = Path(f"/proc/{pid}/stat")
        if status.exists():
            fields = status.read_text().rpartition(")")[2].split()
            found[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def _http_load(
    prompts: Sequence[list[int]], n_tokens: int, loaded: LoadedModel, service: ServiceProcess
) -> Callable[[], list[Stream]]:
    bias = {str(token): NEVER for token in loaded.tokenizer.eog_ids}
    bodies = [
        {"model": DEMO_MODEL.stem, "prompt": ids, "temperature": 0, "max_tokens": n_tokens, "logit_bias": bias}
        for ids in prompts
    ]
    key = service.key

    def run() -> list[Stream]:
        streams = run_load("127.0.0.1", service.port, key, bodies)
        if any(stream.n_tokens != n_tokens for stream in streams):
            raise RuntimeError("a request ended before its number of tokens")
        return streams

    return run


def _engine_tok_s(prompts: Sequence[list[int]], n_tokens: int, loaded: LoadedModel) -> float:
    params = SamplingParams(
        temperature=0.0, max_tokens=n_tokens, logit_bias=dict.fromkeys(loaded.tokenizer.eog_ids, NEVER)
    )
    engine = Engine(loaded.model, ExpertDispatcher(loaded.store, NoWorkers()), max_rows=STEP_ROWS)

    async def run() -> float:
        started = time.perf_counter()
        for number, ids in enumerate(prompts):
            engine.add(EngineSequence(str(number), ids, params, loaded.tokenizer))
        while engine.has_work:
            for event in await engine.step():
                if event.error is not None:
                    raise event.error
        return time.perf_counter() - started

    return len(prompts) * n_tokens / asyncio.run(run())


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def as_keys(found: dict[int, Rounds], n_threads: int) -> dict[str, Any]:
    """The figures under the names that they are published with; each by concurrency."""

    def by_n(figure: Callable[[Rounds], float], digits: int = 1) -> dict[str, float]:
        return {str(n): round(figure(rounds), digits) for n, rounds in found.items()}

    def ms(values: Callable[[Stream], Sequence[float]], share: float) -> dict[str, float]:
        return by_n(lambda rounds: 1000 * percentile([v for s in rounds.streams for v in values(s)], share), 2)

    return {
        "tok_s": by_n(lambda rounds: statistics.median(rounds.service)),
        "ttft_ms_p50": ms(lambda stream: [stream.first_s], 0.5),
        "ttft_ms_p99": ms(lambda stream: [stream.first_s], 0.99),
        "itl_ms_p50": ms(lambda stream: stream.gaps_s, 0.5),
        "itl_ms_p99": ms(lambda stream: stream.gaps_s, 0.99),
        "engine_tok_s": by_n(lambda rounds: statistics.median(rounds.engine)),
        "ratio_service_vs_engine": by_n(Rounds.ratio, 3),
        "llamacpp_tok_s": by_n(lambda rounds: statistics.median(rounds.llamacpp)),
        "threads": n_threads,
        "machine": describe_machine(),
        "commit": describe_commit(),
    }


def as_table(figures: Mapping[str, Any], found: Mapping[int, Rounds]) -> str:
    """The figures for people, with the CPU time of each process for a token."""
    lines = [f"{'concurrent requests':<26}" + "".join(f"{n:>10}" for n in CONCURRENCY)]
    for name, by_n in figures.items():
        if isinstance(by_n, dict):
            lines.append(f"{name:<26}" + "".join(f"{by_n[str(n)]:>10}" for n in CONCURRENCY))
    for name in found[CONCURRENCY[0]].cpu_s:
        used = (1e6 * rounds.cpu_s[name] / rounds.n_tokens for rounds in found.values())
        lines.append(f"{'CPU us a token, ' + name:<26}" + "".join(f"{us:>10.0f}" for us in used))
    return "\n".join([*lines, f"{figures['threads']} threads in each engine", figures["machine"]])


if __name__ == "__main__":
    main()
