"""One decoding run with or without drafts, on a clock that skips waiting. Used by `bench_speculate`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from torch import Tensor

from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.drafts.drafter import DraftCounts
from backbone.engine.model.expert_caller import ExpertCaller
from backbone.engine.serving.engine import Engine
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.scheduler import Chunk
from backbone.engine.serving.sequence import Sequence as EngineSequence
from backbone.engine.swarm.transport import NoWorkers
from backbone.sampling_params import SamplingParams
from benchmarks.emulator.clock import CpuLoop


@dataclass(frozen=True, slots=True)
class Request:
    """What one sequence is asked."""

    prompt_ids: Sequence[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Run:
    """One run's tokens by sequence; seconds, steps and drafts after the step that read the prompts.

    `seat_seconds`: of a sequence, on average. A service gives a seat that is free to the next request.
    """

    token_ids: list[list[int]]
    seconds: float
    seat_seconds: float
    n_steps: int
    drafts: DraftCounts

    @property
    def n_decoded(self) -> int:
        """Tokens after each sequence's first."""
        return sum(len(ids) - 1 for ids in self.token_ids)

    @property
    def steps_per_token(self) -> float:
        """Steps for one token of one sequence, all sequences together; 1 without drafts and with equal lengths."""
        return self.n_steps * len(self.token_ids) / self.n_decoded


class Far:
    """Experts whose answers travel: computed here, at this thread's cost, and there a round trip later."""

    def __init__(self, experts: ExpertCaller, round_trip_s: float) -> None:
        self._experts = experts
        self._round_trip_s = round_trip_s

    def submit(self, layer: int, rows: Tensor, expert_ids: Tensor) -> Awaitable[Tensor]:
        """As `ExpertCaller` has it."""
        return self._later(self._experts.submit(layer, rows, expert_ids))

    async def _later(self, answer: Awaitable[Tensor]) -> Tensor:
        found = await answer
        if self._round_trip_s:
            await asyncio.sleep(self._round_trip_s)
        return found


class _Drafted:
    """Counts drafts of steps."""

    def __init__(self) -> None:
        self.n_drafted = 0

    def see(self, chunks: tuple[Chunk, ...]) -> None:
        self.n_drafted += sum(len(chunk.drafts) for chunk in chunks)


def decode(loaded: LoadedModel, requests: Sequence[Request], *, round_trip_s: float, max_drafts: int) -> Run:
    """Prefill all prompts in one step, then decode them to their ends. Raises what a step raises."""
    loop, drafted = CpuLoop(), _Drafted()
    try:
        experts = Far(ExpertDispatcher(loaded.store, NoWorkers()), round_trip_s)
        max_rows = max(256, sum(len(request.prompt_ids) for request in requests))
        engine = Engine(loaded.model, experts, max_rows=max_rows, on_chunks=drafted.see, clock=loop.time)
        sequences = [
            EngineSequence(str(n), request.prompt_ids, request.params, loaded.tokenizer, max_drafts=max_drafts)
            for n, request in enumerate(requests)
        ]
        for sequence in sequences:
            engine.add(sequence)
        loop.run_until_complete(_step(engine))
        began, n_steps, n_accepted, all_seats_s = loop.time(), 0, 0, 0.0
        while engine.has_work:
            n_seats, step_began = engine.n_sequences, loop.time()
            n_accepted += loop.run_until_complete(_step(engine))
            n_steps += 1
            all_seats_s += n_seats * (loop.time() - step_began)
        return Run(
            [sequence.output_ids for sequence in sequences],
            loop.time() - began,
            all_seats_s / len(sequences),
            n_steps,
            DraftCounts(drafted.n_drafted, n_accepted),
        )
    finally:
        loop.close()


async def _step(engine: Engine) -> int:
    """One step; how many drafts were accepted."""
    n_tokens: Counter[EngineSequence] = Counter()
    for event in await engine.step():
        if event.error is not None:
            raise event.error
        n_tokens[event.sequence] += 1
    return n_tokens.total() - len(n_tokens)
