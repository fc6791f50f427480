"""What the tests of the engine service share: a tiny model, a listener for events, and experts held by a valve."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from backbone.engine.dispatch.dispatcher import ExpertDispatcher, Served
from backbone.engine.dispatch.hot_cache import HotCache
from backbone.engine.model.expert_caller import ExpertCaller
from backbone.engine.serving.jobs import (
    Broken,
    ChoiceEnded,
    Completed,
    FailureKind,
    JobEvent,
    JobEvents,
    JobSpec,
    NewToken,
)
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.service import EngineService, ServiceLimits
from backbone.engine.serving.token_choice import TokenChooser
from backbone.engine.swarm.transport import NoWorkers, Transport
from backbone.management.generation import generate
from backbone.sampling_params import SamplingParams
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.oracles.tiny_layout import TinyShape

DEADLINE_S = 60.0  # of waiting in tests, where only a failure takes long
SHAPE = TinyShape(n_layer=2, n_ctx=128)


def tiny_model(directory: Path) -> Path:
    return write_tiny(directory / "service.gguf", TinyModel("qwen3moe", "Q4_K", shape=SHAPE))


class Listener:
    """Keeps all events, and lets a test wait for what it needs."""

    def __init__(self) -> None:
        self.batches: list[JobEvents] = []
        self._changed = threading.Condition()

    def __call__(self, events: JobEvents) -> None:
        with self._changed:
            self.batches.append(events)
            self._changed.notify_all()

    def of(self, job_id: str) -> list[JobEvent]:
        return [event for batch in list(self.batches) for owner, event in batch if owner == job_id]

    def wait(self, condition: Callable[[], Any]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_S), self.batches[-5:]

    def last(self, job_id: str) -> Completed | Broken:
        """The job's last event, which is waited for."""
        self.wait(lambda: any(isinstance(event, Completed | Broken) for event in self.of(job_id)))
        last = self.of(job_id)[-1]
        assert isinstance(last, Completed | Broken)
        return last

    def failure(self, job_id: str) -> FailureKind:
        last = self.last(job_id)
        assert isinstance(last, Broken), last
        return last.failure.kind

    def text(self, job_id: str, choice: int = 0) -> str:
        return "".join(e.text for e in self.of(job_id) if isinstance(e, NewToken) and e.choice == choice)

    def tokens(self, job_id: str, choice: int = 0) -> list[int]:
        return [e.sampled.token for e in self.of(job_id) if isinstance(e, NewToken) and e.choice == choice]

    def ended(self, job_id: str) -> list[ChoiceEnded]:
        return [event for event in self.of(job_id) if isinstance(event, ChoiceEnded)]


class Valve:
    """Holds every expert call back until the test lets calls pass, and can make them fail."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        self.failing: Exception | None = None
        self._allowed = threading.Semaphore(0)
        self._is_open = False

    def open(self) -> None:
        self._is_open = True

    def pass_calls(self, n_calls: int) -> None:
        for _ in range(n_calls):
            self._allowed.release()

    async def wait(self) -> None:
        self.arrived.release()
        while not self._is_open and not self._allowed.acquire(blocking=False):
            await asyncio.sleep(0.001)  # the loop must stay free for cancels and other groups
        if self.failing is not None:
            error, self.failing = self.failing, None
            raise error


class HeldExperts:
    """The backbone's own replica behind a valve."""

    def __init__(self, experts: ExpertCaller, valve: Valve) -> None:
        self._experts = experts
        self._valve = valve

    def submit(self, layer: int, rows: Tensor, expert_ids: Tensor) -> Awaitable[Tensor]:
        return self._held(self._experts.submit(layer, rows, expert_ids))

    async def _held(self, computing: Awaitable[Tensor]) -> Tensor:
        try:
            await self._valve.wait()
        except BaseException:
            close = getattr(computing, "close", None)
            if close is not None:
                close()
            raise
        return await computing


@contextmanager
def running(
    loaded: LoadedModel,
    *,
    limits: ServiceLimits | None = None,
    valve: Valve | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    transport: Transport | None = None,
    hot: HotCache | None = None,
    chooser: TokenChooser | None = None,
) -> Iterator[tuple[EngineService, Listener]]:
    """A service over the backbone's own replica alone, or over workers."""
    listener = Listener()

    def make_experts(on_served: Callable[[Served], None]) -> ExpertCaller:
        experts = ExpertDispatcher(loaded.store, transport or NoWorkers(), on_served=on_served, hot=hot)
        return experts if valve is None else HeldExperts(experts, valve)

    service = EngineService(loaded, make_experts, listener, limits=limits, clock=clock, chooser=chooser)
    service.start()
    try:
        yield service, listener
    finally:
        if valve is not None:
            valve.open()
        service.stop(0.0)
        assert not service.is_alive
        assert loaded.model.cache.n_free == loaded.model.cache.n_slot


def spec(
    job_id: str, prompt: tuple[int, ...] = (5, 17, 99), *, n: int = 1, deadline_s: float = 60.0, **params: Any
) -> JobSpec:
    asked: dict[str, Any] = {"temperature": 0.8, "seed": 7, "max_tokens": 5} | params
    return JobSpec(job_id, prompt, SamplingParams(**asked), deadline_s, n)


def single_run(loaded: LoadedModel, job: JobSpec) -> tuple[list[int], str]:
    """Tokens and text of the job's first choice, by the in-process engine alone."""
    pieces: list[str] = []
    run = generate(loaded, NoWorkers(), [job.prompt_ids], job.params, on_text=lambda _, text: pieces.append(text))
    return run.output_ids[0], "".join(pieces)
