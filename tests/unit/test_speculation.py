"""Drafts change no bit of an answer: tokens, texts, ends, log-probabilities and logits are those of the plain run.

Every architecture, greedy and sampled, with drafts that are right, partly right and wrong; also when requests are
cancelled or fail while their drafts are verified.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.model.batch import SlotTokens
from backbone.engine.model.kv_cache import Kept
from backbone.engine.model.model import Batch
from backbone.engine.serving.engine import Engine, TokenEvent
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.scheduler import Chunk
from backbone.engine.serving.sequence import FinishReason, Sequence
from backbone.engine.swarm.transport import NoWorkers
from backbone.sampling_params import SamplingParams
from kvasir.errors import RequestError
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.oracles.tiny_layout import ARCHITECTURES, TinyShape

SHAPE = TinyShape(n_layer=4, n_expert=8, n_used=2, n_ctx=512)
N_CTX = 64
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_k": 40, "seed": 11}
NO_END = dict.fromkeys(range(250, 288), -100.0)
# Each must make a difference that depends on the position: history, draws, stops, ends.
REQUESTS: tuple[SamplingParams, ...] = (
    SamplingParams(temperature=0, max_tokens=40, logprobs=2, logit_bias=NO_END),
    SamplingParams(temperature=0, max_tokens=30, repetition_penalty=1.3, frequency_penalty=0.5, logprobs=0),
    SamplingParams(**SAMPLED, max_tokens=33, presence_penalty=1.0, logit_bias={65: 4.0, 66: 3.0}, logprobs=3),
    SamplingParams(**SAMPLED, top_p=0.8, min_p=0.01, stop=("A", "e"), logit_bias={0: 2.0}),
    SamplingParams(**SAMPLED, logit_bias=NO_END),  # ends where the context does
    SamplingParams(temperature=1.5, seed=3, max_tokens=1),
    SamplingParams(temperature=0, max_tokens=25, logit_bias={256: 100.0}),  # the end of the text, at once
)
PROMPTS = [np.random.default_rng(n).integers(0, 250, 3 + 2 * n).tolist() for n in range(len(REQUESTS))]


@dataclass
class Told:
    """What a run showed of each sequence, and its steps."""

    events: dict[int, list[tuple[Any, ...]]] = field(default_factory=lambda: {n: [] for n in range(len(REQUESTS))})
    logits: dict[int, list[str]] = field(default_factory=lambda: {n: [] for n in range(len(REQUESTS))})
    n_steps: int = 0
    n_drafted: int = 0

    def see(self, event: TokenEvent) -> None:
        self.events[int(event.sequence.request_id)].append((event.sampled, event.text, event.finish_reason))

    def tokens(self, number: int) -> list[int]:
        return [sampled.token for sampled, _, _ in self.events[number]]


class Prompted(Sequence):
    """Drafts what it is told to: the answer as it will be, with mistakes."""

    answer: list[int]
    generator: np.random.Generator
    n_forced: int | None = None  # as many drafts, all right

    def draft(self, row_cost: float, limit: int, n_ctx: int) -> tuple[int, ...]:
        if self.n_forced is not None:
            return tuple(self.answer[len(self.output_ids) :][: self.n_forced])
        n_most = min(limit, n_ctx - self.n_tokens - 1, int(self.generator.integers(0, 7)))
        drafts = self.answer[len(self.output_ids) :][: max(n_most, 0)]
        wrong = self.generator.random(len(drafts)) < 0.25
        return tuple(int(token) ^ bool(flip) for token, flip in zip(drafts, wrong, strict=True))


@pytest.fixture(scope="module", params=ARCHITECTURES)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    path = tmp_path_factory.mktemp("drafts") / "m.gguf"
    write_tiny(path, TinyModel(request.param, "Q4_K", shape=SHAPE))
    with LoadedModel.open(path, n_slot=4, n_ctx=N_CTX, n_threads=1) as loaded:
        yield loaded


def run(
    loaded: LoadedModel,
    make: Callable[[int], Sequence],
    *,
    max_rows: int = 24,
    after_step: Callable[[Engine, list[Sequence]], None] = lambda engine, sequences: None,
) -> Told:
    told = Told()

    def see(sequence: Sequence, logits: NDArray[np.float32]) -> None:
        told.logits[int(sequence.request_id)].append(hashlib.sha256(logits.tobytes()).hexdigest())

    def count(chunks: tuple[Chunk, ...]) -> None:
        told.n_drafted += sum(len(chunk.drafts) for chunk in chunks)
        assert sum(chunk.n_rows for chunk in chunks) <= max_rows

    engine = Engine(
        loaded.model,
        ExpertDispatcher(loaded.store, NoWorkers()),
        max_rows=max_rows,
        on_logits=see,
        on_chunks=count,
        clock=lambda: told.n_steps * 0.01,
    )
    sequences = [make(number) for number in range(len(REQUESTS))]

    async def steps() -> None:
        for sequence in sequences:
            engine.add(sequence)
        while engine.has_work:
            for event in await engine.step():
                told.see(event)
            told.n_steps += 1
            after_step(engine, sequences)

    asyncio.run(steps())
    assert loaded.model.cache.n_free == loaded.model.cache.n_slot
    return told


def plain(loaded: LoadedModel, number: int) -> Sequence:
    return Sequence(str(number), PROMPTS[number], REQUESTS[number], loaded.tokenizer, choice=number)


@pytest.fixture(scope="module")
def wanted(loaded: LoadedModel) -> Told:
    told = run(loaded, lambda number: plain(loaded, number))
    reasons = {events[-1][2] for events in told.events.values()}
    assert reasons == {FinishReason.LENGTH, FinishReason.STOP}, "the requests should end in all ways"
    return told


def prompted(loaded: LoadedModel, wanted: Told, seed: int) -> Callable[[int], Prompted]:
    def make(number: int) -> Prompted:
        sequence = Prompted(str(number), PROMPTS[number], REQUESTS[number], loaded.tokenizer, choice=number)
        sequence.answer = wanted.tokens(number)
        sequence.generator = np.random.default_rng([seed, number])
        return sequence

    return make


@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_the_plain_run(loaded: LoadedModel, wanted: Told, seed: int) -> None:
    told = run(loaded, prompted(loaded, wanted, seed), max_rows=(24, 9, 5, 64)[seed])
    assert told.events == wanted.events
    assert told.logits == wanted.logits
    assert told.n_drafted and (seed not in (0, 3) or told.n_steps < wanted.n_steps)


def test_drafts_from_the_text_itself_change_nothing_either(loaded: LoadedModel, wanted: Told) -> None:
    def make(number: int) -> Sequence:
        params = REQUESTS[number]
        return Sequence(str(number), PROMPTS[number], params, loaded.tokenizer, choice=number, max_drafts=6)

    told = run(loaded, make, max_rows=40)
    assert (told.events, told.logits) == (wanted.events, wanted.logits)


def test_cancels_between_steps_leave_the_others_alone(loaded: LoadedModel, wanted: Told) -> None:
    def cancel(engine: Engine, sequences: list[Sequence]) -> None:
        for number in (0, 4):
            if len(sequences[number].output_ids) > 5:
                engine.cancel(sequences[number])

    told = run(loaded, prompted(loaded, wanted, 9), after_step=cancel)
    for number in range(len(REQUESTS)):
        n = len(told.logits[number]) if number in (0, 4) else None
        assert told.events[number] == wanted.events[number][:n]
        assert told.logits[number] == wanted.logits[number][:n]
    assert 5 < len(told.logits[0]) < len(wanted.logits[0])


def test_a_cancel_and_a_failure_while_drafts_are_verified(loaded: LoadedModel, wanted: Told) -> None:
    """The slots are free after, and the next sequences in them are as ever."""
    experts = ExpertDispatcher(loaded.store, NoWorkers())
    make = prompted(loaded, wanted, 1)

    class Interrupted:
        """Passes calls on; `act` is called once in the middle of a step."""

        act: Callable[[], None] | None = None

        async def submit(self, layer: int, rows: torch.Tensor, expert_ids: torch.Tensor) -> torch.Tensor:
            if layer == SHAPE.n_layer - 1 and self.act is not None:
                act, self.act = self.act, None
                act()
            return await experts.submit(layer, rows, expert_ids)

    interrupted = Interrupted()
    engine = Engine(
        loaded.model, interrupted, max_rows=64, on_chunks=lambda chunks: n_drafts.append(len(chunks[0].drafts))
    )
    n_drafts: list[int] = []

    async def steps(act: Callable[[Prompted], None]) -> list[TokenEvent]:
        sequence = make(0)
        engine.add(sequence)
        await engine.step()
        sequence.n_forced = 3
        interrupted.act = lambda: act(sequence)
        return await engine.step()

    def fail(sequence: Prompted) -> None:
        raise ZeroDivisionError("a defect")

    assert asyncio.run(steps(engine.cancel)) == []
    (event,) = asyncio.run(steps(fail))
    assert isinstance(event.error, ZeroDivisionError)
    assert n_drafts == [0, 3, 0, 3]
    assert loaded.model.cache.n_free == loaded.model.cache.n_slot and not engine.has_work
    assert run(loaded, prompted(loaded, wanted, 2)).events == wanted.events


def test_a_slot_goes_on_from_the_rows_that_are_kept(loaded: LoadedModel) -> None:
    """By hand: whatever number is kept, the next logits are those of a slot that never had the others."""
    model, experts = loaded.model, ExpertDispatcher(loaded.store, NoWorkers())
    tokens = np.random.default_rng(8).integers(0, 250, 20).tolist()

    def logits(slot: int, ids: list[int], *, is_tentative: bool = False) -> torch.Tensor:
        batch = Batch.of([SlotTokens(slot, ids, is_tentative)], model.cache)
        return asyncio.run(model.forward(batch, experts, range(batch.n_rows)))

    one, other = model.cache.allocate(), model.cache.allocate()
    logits(one, tokens[:7]), logits(other, tokens[:7])
    at = 7
    for n_kept in (1, 3, 0, 4):
        guessed = [*tokens[at : at + n_kept], 1, 2, 3][:4]
        found = logits(one, guessed, is_tentative=True)
        assert model.cache.length(one) == at
        with pytest.raises(RequestError, match="waiting for the decision"):
            logits(one, [1])
        with pytest.raises(RequestError, match="5 cannot be kept"):
            model.settle([Kept(one, 5)])
        model.settle([Kept(one, n_kept)])
        at += n_kept
        assert model.cache.length(one) == at
        if n_kept:
            assert torch.equal(found[:n_kept], logits(other, tokens[at - n_kept : at]))
    assert torch.equal(logits(one, tokens[at:]), logits(other, tokens[at:]))
    with pytest.raises(RequestError, match="0 tentative rows"):
        model.settle([Kept(one, 1)])
    with pytest.raises(RequestError, match="is not tentative and comes after"):
        Batch.of([SlotTokens(one, [1], True), SlotTokens(other, [1])], model.cache)
    model.cache.free(one)
    model.cache.free(other)
