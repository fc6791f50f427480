"""Drafts of the MTP head change no bit of an answer, and those of a head that is right save the steps they should.

Heads are right by construction, right now and then, or random; requests are those of `test_speculation`, with drafts
that are verified, kept in part, cancelled, failed and handed from one engine to another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.drafts.drafter import DraftCounts
from backbone.engine.drafts.prompt_lookup import PromptLookup
from backbone.engine.model.mtp_head import MtpHead
from backbone.engine.serving.engine import Engine
from backbone.engine.serving.jobs import Completed
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.scheduler import Chunk
from backbone.engine.serving.sequence import Sequence
from backbone.engine.serving.service import ServiceLimits
from backbone.engine.serving.shares import Shares
from backbone.engine.swarm.transport import NoWorkers
from backbone.sampling_params import SamplingParams
from tests.oracles.mtp_models import write_right_head
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.oracles.tiny_layout import TinyShape
from tests.unit.engine_service import running, single_run, spec
from tests.unit.test_speculation import PROMPTS, REQUESTS, plain, run

SHAPE = TinyShape(n_layer=4, n_expert=8, n_used=2, n_ctx=512, n_mtp_layer=1)
N_CTX = 64
GREEDY = SamplingParams(temperature=0, max_tokens=40)
HEADS = ("right", "right now and then", "random")


def write(path: Path, head: str) -> Path:
    if head == "random":
        return write_tiny(path, TinyModel("qwen35moe", "Q4_K", shape=SHAPE))
    return write_right_head(path, SHAPE, disturbance=0.0 if head == "right" else 0.5)


@dataclass
class Files:
    """A model file for each kind of head."""

    paths: dict[str, Path]

    @contextmanager
    def opened(self, head: str, *, has_mtp_head: bool = True) -> Iterator[LoadedModel]:
        path = self.paths[head]
        with LoadedModel.open(path, n_slot=4, n_ctx=N_CTX, n_threads=1, has_mtp_head=has_mtp_head) as loaded:
            assert (loaded.model.mtp_head is not None) is has_mtp_head
            yield loaded


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    directory = tmp_path_factory.mktemp("heads")
    return Files({head: write(directory / f"{head}.gguf", head) for head in HEADS})


@pytest.fixture(params=HEADS)
def head(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def without_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts suggest nothing, so that all drafts are the head's."""
    monkeypatch.setattr(PromptLookup, "_find", lambda lookup, place: None)


def drafting(loaded: LoadedModel, n_most: int = 6) -> Callable[[int], Sequence]:
    def make(number: int) -> Sequence:
        params = REQUESTS[number]
        return Sequence(str(number), PROMPTS[number], params, loaded.tokenizer, choice=number, max_drafts=n_most)

    return make


class Counted:
    """An engine that counts: steps, drafted tokens, and those of them that were kept."""

    def __init__(self, loaded: LoadedModel, max_rows: int = 64) -> None:
        self.n_steps = self.n_drafted = self.n_tokens = self.n_sampling = 0
        self._clock = 0.0
        experts = ExpertDispatcher(loaded.store, NoWorkers())
        self.engine = Engine(loaded.model, experts, max_rows=max_rows, on_chunks=self._count, clock=lambda: self._clock)

    @property
    def n_accepted(self) -> int:
        return self.n_tokens - self.n_sampling

    def _count(self, chunks: tuple[Chunk, ...]) -> None:
        self.n_drafted += sum(len(chunk.drafts) for chunk in chunks)
        self.n_sampling += sum(chunk.is_sampling for chunk in chunks)

    async def step(self) -> None:
        for event in await self.engine.step():
            if event.error is not None:
                raise event.error
            self.n_tokens += 1
        self.n_steps += 1

    def finish(self, *sequences: Sequence) -> None:
        async def steps() -> None:
            for sequence in sequences:
                self.engine.add(sequence)
            while self.engine.has_work:
                await self.step()

        asyncio.run(steps())


def greedy(loaded: LoadedModel, name: str, prompt: list[int], max_drafts: int) -> Sequence:
    return Sequence(name, prompt, GREEDY, loaded.tokenizer, max_drafts=max_drafts)


@pytest.mark.parametrize("max_rows", [7, 24, 64])
def test_answers_are_those_of_the_plain_run(files: Files, head: str, max_rows: int) -> None:
    """All requests at once in four slots, prompts in chunks; texts suggest drafts too, as they do in production."""
    with files.opened(head, has_mtp_head=False) as loaded:
        wanted = run(loaded, lambda number: plain(loaded, number), max_rows=64)
    with files.opened(head) as loaded:
        told = run(loaded, drafting(loaded), max_rows=max_rows)
    assert (told.events, told.logits) == (wanted.events, wanted.logits)
    assert told.n_drafted


def test_a_right_head_is_always_right_and_saves_steps(files: Files, without_lookup: None) -> None:
    with files.opened("right") as loaded:
        alone, drafted = Counted(loaded), Counted(loaded)
        wanted = [greedy(loaded, str(n), PROMPTS[n], 0) for n in range(3)]
        found = [greedy(loaded, str(n), PROMPTS[n], 4) for n in range(3)]
        alone.finish(*wanted)
        drafted.finish(*found)
    assert [sequence.output_ids for sequence in found] == [sequence.output_ids for sequence in wanted]
    assert alone.n_drafted == 0
    assert drafted.n_accepted == drafted.n_drafted > 60
    assert drafted.n_steps < 0.5 * alone.n_steps


@pytest.mark.parametrize("mutant", ["the token", "the rows that are kept", "the slot"])
def test_a_head_that_follows_wrongly_is_found_out(
    mutant: str, files: Files, without_lookup: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts above can fail, and answers stay right when they do."""
    guess, settle = MtpHead.guess, MtpHead.settle
    if mutant == "the token":
        monkeypatch.setattr(
            MtpHead,
            "guess",
            lambda self, tokens, hidden: guess(self, [t._replace(token_id=t.token_id ^ 1) for t in tokens], hidden),
        )
    elif mutant == "the rows that are kept":
        monkeypatch.setattr(MtpHead, "settle", lambda self, kept: settle(self, [k._replace(n_rows=0) for k in kept]))
    else:
        monkeypatch.setattr(MtpHead, "is_ready", lambda self, slot, n_cached: self._n_seen[0] == n_cached)
    with files.opened("right") as loaded:
        wanted, found = (greedy(loaded, "0", PROMPTS[0], n) for n in (0, 4))
        Counted(loaded).finish(wanted)
        holder = loaded.model.cache.allocate() if mutant == "the slot" else None
        counted = Counted(loaded)
        counted.finish(found)
        if holder is not None:
            loaded.model.cache.free(holder)
    assert found.output_ids == wanted.output_ids
    assert counted.n_accepted < 30 and (counted.n_accepted < counted.n_drafted or counted.n_drafted < 10)


def test_cancels_leave_the_others_and_the_next_in_their_slots_alone(files: Files, head: str) -> None:
    def cancel(engine: Engine, sequences: list[Sequence]) -> None:
        for number in (0, 4):
            if len(sequences[number].output_ids) > 5:
                engine.cancel(sequences[number])

    with files.opened(head) as loaded:
        wanted = run(loaded, lambda number: plain(loaded, number))
        told = run(loaded, drafting(loaded), after_step=cancel)
        again = run(loaded, drafting(loaded))
    for number in range(len(REQUESTS)):
        n = len(told.logits[number]) if number in (0, 4) else None
        assert told.events[number] == wanted.events[number][:n]
    assert 5 < len(told.logits[0]) < len(wanted.logits[0])
    assert (again.events, again.logits) == (wanted.events, wanted.logits)


def test_a_sequence_goes_on_with_its_head_in_another_engine(files: Files, without_lookup: None) -> None:
    with files.opened("right") as loaded:
        one, other = Counted(loaded), Counted(loaded)
        wanted, moved, beside = (greedy(loaded, str(n), PROMPTS[n > 1], 4 * bool(n)) for n in range(3))
        Counted(loaded).finish(wanted)

        async def steps() -> None:
            one.engine.add(moved)
            one.engine.add(beside)
            for _ in range(4):
                await one.step()
            one.engine.hand_over(moved, other.engine)
            while one.engine.has_work or other.engine.has_work:
                for counted in (one, other):
                    if counted.engine.has_work:
                        await counted.step()

        asyncio.run(steps())
    assert moved.output_ids == wanted.output_ids
    assert len(beside.output_ids) == GREEDY.max_tokens
    assert other.n_accepted == other.n_drafted > 10
    assert one.n_accepted == one.n_drafted > 10


def test_a_head_that_breaks_costs_no_answer(
    files: Files, without_lookup: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guess, n_calls = MtpHead.guess, 0

    async def breaking(self: MtpHead, *arguments: object) -> object:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 4:
            raise ZeroDivisionError("a defect")
        return await guess(self, *arguments)  # type: ignore[arg-type]

    with files.opened("right") as loaded:
        wanted, found, after = (greedy(loaded, "0", PROMPTS[0], n) for n in (0, 4, 4))
        Counted(loaded).finish(wanted)
        monkeypatch.setattr(MtpHead, "guess", breaking)
        Counted(loaded).finish(found)
        assert "the MTP head guesses no more for 1 sequences" in caplog.text
        assert n_calls == 4
        counted = Counted(loaded)
        counted.finish(after)
    assert found.output_ids == after.output_ids == wanted.output_ids
    assert counted.n_accepted > 20


def test_a_forward_that_fails_leaves_the_next_sequence_a_whole_head(
    files: Files, without_lookup: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with files.opened("right") as loaded:
        wanted, failing, after = (greedy(loaded, "0", PROMPTS[0], n) for n in (0, 4, 4))
        Counted(loaded).finish(wanted)

        async def steps() -> None:
            counted = Counted(loaded)
            counted.engine.add(failing)
            for _ in range(3):
                await counted.step()
            with monkeypatch.context() as patched:
                patched.setattr(MtpHead, "see", lambda *_: 1 / 0)
                (event,) = await counted.engine.step()
                assert isinstance(event.error, ZeroDivisionError)

        asyncio.run(steps())
        counted = Counted(loaded)
        counted.finish(after)
    assert after.output_ids == wanted.output_ids
    assert counted.n_accepted == counted.n_drafted > 20


@pytest.mark.parametrize("n_groups", [1, 2])
def test_jobs_count_what_the_head_drafted_and_nothing_of_its_experts(files: Files, n_groups: int) -> None:
    """Rows of rejected drafts are work; the head's own layer is nobody's but the backbone's."""
    with files.opened("right now and then") as loaded:
        jobs = [
            spec(f"j{n}", tuple(PROMPTS[n]), max_tokens=30, seed=n, temperature=(0.0, 0.7)[n % 2]) for n in range(5)
        ]
        wanted = {job.job_id: single_run(loaded, job) for job in jobs}
        limits = ServiceLimits(n_groups=n_groups, max_rows=32, max_drafts=5)
        with running(loaded, limits=limits) as (service, listener):
            for job in jobs:
                service.submit(job)
            ends = [listener.last(job.job_id) for job in jobs]
        assert {job.job_id: (listener.tokens(job.job_id), listener.text(job.job_id)) for job in jobs} == wanted
    total = DraftCounts()
    for job, end in zip(jobs, ends, strict=True):
        assert isinstance(end, Completed)
        total += end.drafts
        n_tokens = len(wanted[job.job_id][0])
        n_rows = len(job.prompt_ids) + n_tokens - 1 + end.drafts.drafted - end.drafts.accepted
        assert end.shares == Shares(fallback=n_rows * SHAPE.n_layer * SHAPE.n_used)
    assert total.drafted


def test_without_a_head_no_hidden_state_is_kept(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output norm then runs over the rows alone that have logits."""
    n_rows: list[int] = []
    with files.opened("random", has_mtp_head=False) as loaded:
        ops = type(loaded.model.ops)
        linear = ops.linear

        def watched(self: object, x: object, *linears: object) -> object:
            if getattr(linears[0], "n_out", 0) == loaded.model.n_vocab:
                n_rows.append(len(x))  # type: ignore[arg-type]
            return linear(self, x, *linears)  # type: ignore[arg-type]

        monkeypatch.setattr(ops, "linear", watched)
        Counted(loaded).finish(greedy(loaded, "0", PROMPTS[3], 0))
    with files.opened("random") as loaded:
        Counted(loaded).finish(greedy(loaded, "0", PROMPTS[3], 0))
    assert set(n_rows) == {1}
