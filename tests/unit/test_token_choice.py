"""Choosing tokens beside the engine's loop: the same answers, other groups go on, cancels and failures as ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pytest

from backbone.engine.sampling import choice as sampling
from backbone.engine.serving.jobs import Began, ChoiceEnded, Completed, FailureKind, JobSpec, NewToken
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.scheduler import Chunk
from backbone.engine.serving.sequence import Sequence
from backbone.engine.serving.service import ServiceLimits
from backbone.engine.serving.token_choice import TokenChooser
from kvasir.errors import RequestError
from tests.unit.engine_service import DEADLINE_S, running, single_run, spec, tiny_model

T = TypeVar("T")
N_SLOT = 6
ECHO = (70, 71, 72, 73, 74, 75) * 3


class HeldExecutor(ThreadPoolExecutor):
    """Holds the first choice back until it may be made, or told when it is made; the others are made at once."""

    def __init__(self, *, is_made: bool) -> None:
        super().__init__(2)
        self._is_made = is_made
        self._has_held = False
        self.holding = threading.Event()
        self.may_go = threading.Event()

    def submit(self, act: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        if self._has_held:
            return super().submit(act, *args, **kwargs)
        self._has_held = True
        return super().submit(self._held, act, *args, **kwargs)

    def wait_until_held(self) -> None:
        assert self.holding.wait(DEADLINE_S)

    def _held(self, act: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        made = [act(*args, **kwargs)] if self._is_made else []
        self.holding.set()
        assert self.may_go.wait(DEADLINE_S)
        return made[0] if made else act(*args, **kwargs)


class NoExecutor(Executor):
    """Must not be asked."""

    def submit(self, act: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        raise AssertionError("a choice was handed over")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    with LoadedModel.open(tiny_model(tmp_path_factory.mktemp("choice")), n_slot=N_SLOT, n_threads=1) as loaded:
        yield loaded


@pytest.fixture(params=[False, True])
def held(request: pytest.FixtureRequest) -> Iterator[HeldExecutor]:
    executor = HeldExecutor(is_made=request.param)
    yield executor
    executor.may_go.set()
    executor.shutdown()


def made_job(dice: np.random.Generator, number: int) -> JobSpec:
    params: dict[str, Any] = {
        "temperature": float(dice.choice([0.0, 0.7, 1.5])),
        "top_k": int(dice.choice([0, 20])),
        "top_p": float(dice.choice([1.0, 0.9])),
        "repetition_penalty": float(dice.choice([1.0, 1.2])),
        "logprobs": None if dice.random() < 0.5 else 3,
        "logit_bias": {} if dice.random() < 0.5 else {70 + n: 30.0 for n in range(6)},
        "stop": [] if dice.random() < 0.5 else [chr(int(dice.integers(97, 123)))],
        "max_tokens": int(dice.integers(1, 30)),
    }
    return spec(f"j{number}", ECHO[number % 6 :], n=1 + number % 2, seed=number, **params)


def answers(
    loaded: LoadedModel, jobs: list[JobSpec], limits: ServiceLimits, chooser: TokenChooser
) -> dict[str, list[object]]:
    with running(loaded, limits=limits, chooser=chooser) as (service, listener):
        for job in jobs:
            service.submit(job)
        for job in jobs:
            assert isinstance(listener.last(job.job_id), Completed)
        return {
            f"{job.job_id}.{choice}": [
                event
                for event in listener.of(job.job_id)
                if isinstance(event, NewToken | ChoiceEnded) and event.choice == choice
            ]
            for job in jobs
            for choice in range(job.n_choices)
        }


@pytest.mark.parametrize("n_groups", [1, 2, 4])
@pytest.mark.parametrize("max_drafts", [0, 4])
def test_another_thread_chooses_what_the_loop_would(loaded: LoadedModel, n_groups: int, max_drafts: int) -> None:
    """Tokens, texts, log-probabilities, ends, in order; stop strings, penalties and drafts included."""
    dice = np.random.default_rng(10 * n_groups + max_drafts)
    limits = ServiceLimits(n_groups=n_groups, max_rows=24, max_drafts=max_drafts)
    for _ in range(2):
        jobs = [made_job(dice, number) for number in range(8)]
        wanted = answers(loaded, jobs, limits, TokenChooser(None))
        assert answers(loaded, jobs, limits, TokenChooser(ThreadPoolExecutor(1), worth_s=0)) == wanted


def test_other_groups_go_on_while_tokens_are_chosen(loaded: LoadedModel, held: HeldExecutor) -> None:
    with running(loaded, limits=ServiceLimits(n_groups=2), chooser=TokenChooser(held, worth_s=0)) as (
        service,
        listener,
    ):
        service.submit(spec("one", max_tokens=4))
        held.wait_until_held()
        service.submit(spec("other", max_tokens=20, seed=2))
        assert isinstance(listener.last("other"), Completed)
        assert not listener.tokens("one")
        held.may_go.set()
        assert isinstance(listener.last("one"), Completed)
    assert listener.tokens("one") == single_run(loaded, spec("one", max_tokens=4))[0]
    assert listener.tokens("other") == single_run(loaded, spec("other", max_tokens=20, seed=2))[0]


@pytest.mark.parametrize("max_tokens", [1, 9])
def test_a_job_can_be_cancelled_while_its_token_is_chosen(
    loaded: LoadedModel, held: HeldExecutor, max_tokens: int
) -> None:
    """Also one whose token would have been the last. It shows no token, and its slots are free when the choice ends."""
    with running(loaded, chooser=TokenChooser(held, worth_s=0)) as (service, listener):
        service.submit(spec("gone", n=N_SLOT - 1, max_tokens=max_tokens))
        service.submit(spec("stays"))
        held.wait_until_held()
        service.cancel("gone")
        assert listener.failure("gone") is FailureKind.CANCELLED
        service.submit(spec("next", n=N_SLOT, max_tokens=3))
        assert service.state().n_running >= N_SLOT - 1
        assert not any(isinstance(event, Began) for event in listener.of("next"))
        held.may_go.set()
        assert isinstance(listener.last("stays"), Completed)
        assert isinstance(listener.last("next"), Completed)
    assert not listener.tokens("gone") and len(listener.of("gone")) == 2
    assert listener.tokens("stays") == single_run(loaded, spec("stays"))[0]
    assert listener.tokens("next") == single_run(loaded, spec("next", max_tokens=3))[0]


def test_a_token_that_cannot_be_chosen_on_another_thread_fails_its_job_alone(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, threads = sampling.sample, set[str]()

    def breaking(logits: object, history: object, params: object, draw: object) -> object:
        threads.add(threading.current_thread().name)
        if getattr(params, "seed", None) == 666:
            raise RequestError("the logits are not finite")
        return chosen(logits, history, params, draw)  # type: ignore[arg-type]

    monkeypatch.setattr("backbone.engine.serving.sequence.sample", breaking)
    with running(loaded, chooser=TokenChooser(ThreadPoolExecutor(1, "beside"), worth_s=0)) as (service, listener):
        service.submit(spec("good"))
        service.submit(spec("bad", seed=666, n=2))
        assert listener.failure("bad") is FailureKind.STEP_FAILED
        assert isinstance(listener.last("good"), Completed)
    monkeypatch.undo()
    assert listener.tokens("good") == single_run(loaded, spec("good"))[0]
    assert threads == {"beside_0"}


def test_when_nobody_can_choose_the_jobs_of_the_step_fail_and_the_service_goes_on(loaded: LoadedModel) -> None:
    with running(loaded, chooser=TokenChooser(NoExecutor(), worth_s=0)) as (service, listener):
        service.submit(spec("a", n=2))
        assert listener.failure("a") is FailureKind.STEP_FAILED
        service.submit(spec("b"))
        assert listener.failure("b") is FailureKind.STEP_FAILED
        assert service.is_alive and service.state().n_running == 0


def test_stopping_waits_for_the_choice_and_no_longer(loaded: LoadedModel, held: HeldExecutor) -> None:
    with running(loaded, chooser=TokenChooser(held, worth_s=0)) as (service, listener):
        service.submit(spec("runs", n=N_SLOT))
        service.submit(spec("waits"))
        held.wait_until_held()
        stopping = threading.Thread(target=service.stop, args=(0.0,))
        stopping.start()
        assert listener.failure("runs") is listener.failure("waits") is FailureKind.STOPPING
        assert service.is_alive  # its thread must not end before what may still write to its sequences
        held.may_go.set()
        stopping.join(DEADLINE_S)
        assert not service.is_alive
    with pytest.raises(RuntimeError, match="after shutdown"):
        held.submit(print)


def test_what_takes_long_is_handed_over_and_what_does_not_is_not() -> None:
    """By what a row took of late: 10 ms each, and then next to nothing."""
    now, row_s, handed_over = [0.0], [0.01], list[int]()

    class Counting(ThreadPoolExecutor):
        def submit(self, act: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
            handed_over.append(len(args[1]))
            return super().submit(act, *args, **kwargs)

    chooser = TokenChooser(Counting(1), worth_s=0.025, clock=lambda: now[0])

    class Rows(list[Chunk]):
        """No chunks, but as many rows to choose from as the clock is told."""

        def __init__(self, n_rows: int) -> None:
            super().__init__()
            self.n_rows = n_rows

        def __iter__(self) -> Iterator[Chunk]:
            now[0] += self.n_rows * row_s[0]
            return super().__iter__()

    async def choose(n_rows: int) -> None:
        assert await chooser.choose(Rows(n_rows), np.zeros((n_rows, 4), np.float32), 9) == []

    async def choices() -> None:
        for n_rows in (8, 2, 3, 0, 8):
            await choose(n_rows)
        assert handed_over == [3, 8]
        row_s[0] = 1e-6
        for _ in range(40):
            await choose(8)
        n_handed_over = len(handed_over)
        assert n_handed_over < 20
        await choose(8)
        assert len(handed_over) == n_handed_over

    asyncio.run(choices())
    chooser.close()


def test_short_choices_stay_on_the_loop(loaded: LoadedModel) -> None:
    jobs = [spec(f"j{n}", seed=n) for n in range(N_SLOT)]
    found = answers(loaded, jobs, ServiceLimits(n_groups=2), TokenChooser(NoExecutor(), clock=lambda: 0.0))
    for job in jobs:
        tokens = [event.sampled.token for event in found[f"{job.job_id}.0"] if isinstance(event, NewToken)]
        assert tokens == single_run(loaded, job)[0]


def test_a_sequence_says_where_it_must_end_and_does_not_end_itself(loaded: LoadedModel) -> None:
    """The engine may have cancelled it meanwhile."""
    sequence = Sequence("s", (1, 2), spec("x", temperature=0, max_tokens=1).params, loaded.tokenizer)
    logits = np.zeros(loaded.model.n_vocab, np.float32)
    assert sequence.advance(logits, 100).finish_reason == "length"
    assert sequence.finish_reason is None
