"""The engine as a service: one thread with an event loop that runs steps; other threads submit and cancel jobs.

`backbone.process` submits jobs and passes their events on. Nothing here knows Redis, Celery or Django. Every submitted
job gets exactly one last event, `Completed` or `Broken`, also when the engine's thread dies.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from backbone.engine.dispatch.counters import Served
from backbone.engine.serving.engine import Engine, StepExperts
from backbone.engine.serving.jobs import N_TRACED, Broken, FailureKind, Job, JobEvents, JobFailure, JobSpec, check_fits
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.micro_batches import MOST_GROUPS, GroupPlanner
from backbone.engine.serving.service_core import Counters, Group, ServiceCore
from backbone.engine.serving.shares import ShareMeter
from backbone.engine.serving.token_choice import TokenChooser
from kvasir.errors import KvasirError

logger = logging.getLogger(__name__)

CANCELLED = JobFailure(FailureKind.CANCELLED, "the request was cancelled")
STOPPING = JobFailure(FailureKind.STOPPING, "this backbone is stopping; send the request again")
ENGINE_LOST = JobFailure(FailureKind.ENGINE_LOST, "the engine stopped unexpectedly; send the request again")

MakeExperts = Callable[[Callable[[Served], None]], StepExperts]


class ServiceClosed(KvasirError):
    """Raised if the service takes no jobs: it was not started, is stopping, or its thread has ended."""


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """`n_groups` micro-batches are in flight; None measures how many hide the waiting for workers.

    `max_rows` bounds the rows of a step of each group, `max_waiting` the jobs in line. The sources of the last
    `n_traced_tokens` of an answer are kept. `max_drafts` bounds the tokens of a draft; 0 turns drafts off.
    """

    n_groups: int | None = None
    max_rows: int = 256
    max_waiting: int = 64
    n_traced_tokens: int = N_TRACED
    max_drafts: int = 0


def make_groups(
    loaded: LoadedModel,
    make_experts: MakeExperts,
    limits: ServiceLimits,
    n_groups: int,
    chooser: TokenChooser | None = None,
) -> list[Group]:
    """Return engines over one model, each with its own expert caller and meter; without a `chooser` on one thread."""
    groups = []
    for _ in range(n_groups):
        meter = ShareMeter(is_tracing=limits.n_traced_tokens > 0)
        experts = make_experts(meter.add)
        engine = Engine(loaded.model, experts, max_rows=limits.max_rows, on_chunks=meter.begin, chooser=chooser)
        groups.append(Group(engine, meter, experts.trips))
    return groups


@dataclass(frozen=True, slots=True)
class ServiceState:
    """How busy the service is now.

    `stalled_s` is how long the longest step in flight has been running, `n_groups` the micro-batches in flight.
    """

    n_running: int
    n_waiting: int
    n_slot: int
    stalled_s: float
    n_groups: int
    counters: Counters


class EngineService:
    """Owns the engine's thread, and one for long choices of tokens. Methods may be called from any other thread."""

    def __init__(
        self,
        loaded: LoadedModel,
        make_experts: MakeExperts,
        on_events: Callable[[JobEvents], None],
        *,
        limits: ServiceLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        chooser: TokenChooser | None = None,
    ) -> None:
        """`make_experts` is called once for each group, with the callable that receives each `Served`.

        `on_events` is called on the engine's thread, once a step with all its events; it must not block. The service
        closes a given `chooser` when it ends, as its own.
        """
        self._loaded = loaded
        self._make_experts = make_experts
        self._on_events = on_events
        self._limits = limits or ServiceLimits()
        self._clock = clock
        self._chooser = chooser or TokenChooser(ThreadPoolExecutor(1, "kvasir-chooser"))
        self._lock = threading.Lock()
        self._inbox: deque[Job] = deque()
        self._is_open = False
        self._core: ServiceCore | None = None
        self._loop = asyncio.new_event_loop()
        self._stepping: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="kvasir-engine", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the engine's thread runs."""
        return self._thread.is_alive()

    @property
    def n_ctx(self) -> int:
        """Most tokens of a sequence."""
        return self._loaded.model.cache.n_ctx

    def start(self) -> None:
        """Start the thread."""
        ready = threading.Event()
        self._loop.call_soon(ready.set)
        self._core = self._make_core()
        self._is_open = True
        self._thread.start()
        ready.wait()

    def submit(self, spec: JobSpec) -> None:
        """Take a job; its results come as events.

        Raises RequestError if it can never be served (ContextOverflow names both numbers), and ServiceClosed.
        """
        model = self._loaded.model
        check_fits(spec.prompt_ids, spec.params, n_ctx=model.cache.n_ctx, n_vocab=model.n_vocab)
        job = Job(
            spec,
            self._loaded.tokenizer,
            self._clock() + spec.deadline_s,
            n_traced_tokens=self._limits.n_traced_tokens,
            max_drafts=self._limits.max_drafts,
        )
        with self._lock:
            core = self._opened()
            self._inbox.append(job)
            self._loop.call_soon_threadsafe(self._empty_inbox, core)

    def cancel(self, job_id: str, failure: JobFailure = CANCELLED) -> None:
        """End a job early. Unknown ids, and those of jobs that have ended, are ignored."""
        self._call(lambda core: core.fail(job_id, failure))

    def cancel_all(self, failure: JobFailure) -> None:
        """End all jobs early."""
        self._call(lambda core: core.fail_all(failure))

    def state(self) -> ServiceState:
        """Return the state without waiting for the loop. Raises ServiceClosed before the start."""
        core = self._core
        if core is None:
            raise ServiceClosed("the service was not started")
        now = self._clock()
        stalled = max((now - begun for group in core.groups if (begun := group.busy_since) is not None), default=0.0)
        n_slot = self._loaded.model.cache.n_slot
        return ServiceState(core.n_sequences, len(core.line), n_slot, stalled, core.planner.n_groups, core.counters)

    def stop(self, deadline_s: float) -> None:
        """Refuse new jobs, let running jobs finish until the deadline, then end the rest and the thread."""
        until = time.monotonic() + deadline_s
        drained = threading.Event()
        self._call(lambda core: self._drain(core, drained))
        while self._thread.is_alive() and not drained.wait(0.1) and time.monotonic() < until:
            pass
        self._call(lambda core: self._stop_stepping())
        self._thread.join(deadline_s + 10.0)

    def _make_core(self) -> ServiceCore:
        limits = self._limits
        most = limits.n_groups or min(MOST_GROUPS, self._loaded.model.cache.n_slot)
        return ServiceCore(
            make_groups(self._loaded, self._make_experts, limits, most, self._chooser),
            n_slot=self._loaded.model.cache.n_slot,
            max_waiting=limits.max_waiting,
            clock=self._clock,
            on_events=self._on_events,
            planner=GroupPlanner(most, is_fixed=limits.n_groups is not None),
        )

    def _opened(self) -> ServiceCore:
        if not self._is_open or self._core is None:
            raise ServiceClosed("the engine takes no requests")
        return self._core

    def _call(self, act: Callable[[ServiceCore], None]) -> None:
        """Call `act` on the loop; does nothing when the service is closed."""
        with self._lock:
            if self._is_open and self._core is not None:
                self._loop.call_soon_threadsafe(act, self._core)

    def _empty_inbox(self, core: ServiceCore) -> None:
        while self._inbox:
            core.submit(self._inbox.popleft())

    def _drain(self, core: ServiceCore, drained: threading.Event) -> None:
        core.refuse(STOPPING)
        waiting = self._loop.create_task(core.drained.wait())
        waiting.add_done_callback(lambda _: drained.set())

    def _stop_stepping(self) -> None:
        if self._stepping is not None:
            self._stepping.cancel()

    def _run(self) -> None:
        """Run the thread: step until stopped, or until an error that no job caused."""
        core, failure = self._opened(), ENGINE_LOST
        asyncio.set_event_loop(self._loop)
        try:
            self._stepping = self._loop.create_task(core.run())
            self._loop.run_until_complete(self._stepping)
        except asyncio.CancelledError:
            failure = STOPPING
        except Exception:
            logger.exception("the engine's loop has ended")
        with self._lock:
            self._is_open = False
        self._loop.run_until_complete(asyncio.sleep(0))  # runs the calls that came before the lock was taken
        core.refuse(failure)
        core.fail_all(failure)
        if self._inbox:
            self._on_events([(job.spec.job_id, Broken(failure)) for job in self._inbox])
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._chooser.close()
        self._loop.close()
