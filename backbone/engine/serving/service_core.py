"""The engine service on its event loop: admission, steps in one coroutine for each group, events, deadlines, failures.

`service` owns the thread around it. Everything here runs on one loop; time comes from outside. Groups hold disjoint
sequences and so disjoint slots: while one waits for workers, another computes, and no bit depends on it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from backbone.engine.dispatch.trips import TripMeter
from backbone.engine.drafts.drafter import DraftCounts
from backbone.engine.serving.engine import Engine, TokenEvent
from backbone.engine.serving.jobs import (
    Began,
    Broken,
    ChoiceEnded,
    Completed,
    FailureKind,
    Job,
    JobEvent,
    JobEvents,
    JobFailure,
    NewToken,
    Waiting,
)
from backbone.engine.serving.micro_batches import BusyMeter, GroupPlanner, Stopwatch
from backbone.engine.serving.sequence import Sequence as EngineSequence
from backbone.engine.serving.shares import ShareMeter, Shares
from backbone.engine.serving.waiting_line import WaitingLine

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Group:
    """Sequences that step together: one engine, and the meters that its dispatcher and engine feed."""

    engine: Engine
    meter: ShareMeter
    trips: TripMeter | None = None  # what its layer calls wait for, where the dispatcher tells
    busy_since: float | None = None  # when the step in flight began


@dataclass(slots=True)
class Counters:
    """What the service has done since its start. Written by the loop, read from anywhere."""

    n_steps: int = 0
    n_tokens: int = 0
    n_completed: int = 0
    n_failed: int = 0
    shares: Shares = field(default_factory=Shares)
    drafts: DraftCounts = field(default_factory=DraftCounts)


class ServiceCore:
    """Jobs over groups of engines that share a model's slots. Only its loop may call it."""

    def __init__(
        self,
        groups: Sequence[Group],
        *,
        n_slot: int,
        max_waiting: int,
        clock: Callable[[], float],
        on_events: Callable[[JobEvents], None],
        planner: GroupPlanner | None = None,
        busy_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """`on_events` gets all events of a step at once; it must not block and must not raise.

        Without a `planner` sequences are spread over all groups. `busy_clock` reads how long the loop's thread has
        computed; with it the planner learns what groups cost.
        """
        self.groups = tuple(groups)
        self.planner = planner or GroupPlanner(len(self.groups), is_fixed=True)
        self._busy = BusyMeter(busy_clock)
        self.counters = Counters()
        self.jobs: dict[str, Job] = {}
        self.line = WaitingLine(max_waiting)
        self.drained = asyncio.Event()
        self._n_slot = n_slot
        self._clock = clock
        self._on_events = on_events
        self._events: JobEvents = []
        self._by_sequence: dict[EngineSequence, Job] = {}
        self._wake = asyncio.Event()
        self._refusing: JobFailure | None = None

    @property
    def n_sequences(self) -> int:
        """Sequences that have a slot, or the promise of one."""
        return sum(group.engine.n_sequences for group in self.groups)

    async def run(self) -> None:
        """Step all groups until cancelled."""
        await asyncio.gather(*(self._run_group(group) for group in self.groups))

    def submit(self, job: Job) -> None:
        """Let a job in, put it in line, or refuse it by an event."""
        self.jobs[job.spec.job_id] = job
        self.line.join(job)
        if self._refusing is not None:
            self._fail(job, self._refusing)
        self._admit()
        if self.line.is_overfull and job.spec.job_id in self.jobs and not job.has_begun:
            message = f"{self.line.max_jobs} requests are waiting already, and no more may wait"
            self._fail(job, JobFailure(FailureKind.QUEUE_FULL, message))
        self._report()

    def fail(self, job_id: str, failure: JobFailure) -> None:
        """End a job early; its slots are free at once, or when the step in flight ends. Unknown ids are ignored."""
        job = self.jobs.get(job_id)
        if job is not None:
            self._fail(job, failure)
            self._admit()
        self._report()

    def fail_all(self, failure: JobFailure) -> None:
        """End every job early."""
        for job in list(self.jobs.values()):
            self._fail(job, failure)
        self._report()

    def refuse(self, failure: JobFailure) -> None:
        """Let nobody in any more; `drained` is set when the last job has ended."""
        self._refusing = failure
        self._report()

    async def _run_group(self, group: Group) -> None:
        while True:
            if not group.engine.has_work:
                self._wake.clear()
                await self._wake.wait()
                continue
            self._end_overdue()
            group.busy_since = self._clock()
            step = Stopwatch(group.engine.step(), self._busy)
            events = await step
            group.busy_since = None
            self._after_step(group, events)
            trip = group.trips.take() if group.trips is not None else None
            if trip is not None:
                self.planner.note(step.seconds, self._busy.beside_s(), trip)
            self._spread(group)
            await asyncio.sleep(0)  # lets other groups, new jobs and cancels in when no worker was waited for

    def _after_step(self, group: Group, events: list[TokenEvent]) -> None:
        self.counters.n_steps += 1
        n_tokens = Counter(event.sequence for event in events if event.sampled is not None)
        for sequence, shares, tokens, drafts in group.meter.end(n_tokens):
            self.counters.shares += shares
            self.counters.drafts += drafts
            job = self._by_sequence.get(sequence)
            if job is None:
                continue
            job.shares += shares
            job.drafts += drafts
            if sequence.choice == 0:
                for token in tokens:
                    job.last_tokens.add(token)
        for event in events:
            job = self._by_sequence.get(event.sequence)
            if job is not None:
                self._take_token(job, event)
        self._admit()
        self._report()

    def _take_token(self, job: Job, event: TokenEvent) -> None:
        if event.sampled is None:
            error = event.error
            logger.error("a step of request %s failed", job.spec.job_id, exc_info=error)
            self._fail(job, JobFailure(FailureKind.STEP_FAILED, f"the engine could not compute this request: {error}"))
            return
        self.counters.n_tokens += 1
        job.n_completion_tokens += 1
        choice = event.sequence.choice
        self._emit(job, NewToken(choice, event.sampled, event.text))
        if event.finish_reason is None:
            return
        self._emit(job, ChoiceEnded(choice, event.finish_reason, len(event.sequence.output_ids)))
        del self._by_sequence[event.sequence], job.running[event.sequence]
        job.n_ended += 1
        if job.is_complete:
            self.counters.n_completed += 1
            del self.jobs[job.spec.job_id]
            n_prompt_tokens, trace = len(job.spec.prompt_ids), job.last_tokens.trace()
            self._emit(job, Completed(n_prompt_tokens, job.n_completion_tokens, job.shares, trace, job.drafts))

    def _fail(self, job: Job, failure: JobFailure) -> None:
        self.counters.n_failed += 1
        self.line.leave(job)
        for sequence, number in job.running.items():
            self.groups[number].engine.cancel(sequence)
            del self._by_sequence[sequence]
        job.running.clear()
        del self.jobs[job.spec.job_id]
        self._emit(job, Broken(failure, job.last_tokens.trace()))

    def _end_overdue(self) -> None:
        now = self._clock()
        overdue = [job for job in self.jobs.values() if job.deadline_at <= now]
        for job in overdue:
            message = f"the request was not complete within {job.spec.deadline_s:g} s"
            self._fail(job, JobFailure(FailureKind.DEADLINE, message))
        if overdue:
            self._admit()
            self._report()

    def _admit(self) -> None:
        """Give the slots that are free to those who wait, each in the group that has the fewest of those in use."""
        while self.n_sequences < self._n_slot:
            taken = self.line.take()
            if taken is None:
                break
            job, sequence = taken
            number = self._emptiest()
            self.groups[number].engine.add(sequence)
            job.running[sequence] = number
            self._by_sequence[sequence] = job
            if not job.has_begun:
                job.has_begun = True
                self._emit(job, Began(len(job.spec.prompt_ids)))
            self._wake.set()

    def _emptiest(self) -> int:
        """Of the groups in use the one with the fewest sequences."""
        return min(range(self.planner.n_groups), key=lambda n: self.groups[n].engine.n_sequences)

    def _spread(self, group: Group) -> None:
        """Between two steps of a group: let others go on with what it has too many of, or all if it is not in use."""
        n_groups = self.planner.replan(self._clock(), self.n_sequences)
        is_used = any(group is used for used in self.groups[:n_groups])
        for sequence in reversed(group.engine.movable):
            number = self._emptiest()
            other = self.groups[number].engine
            if is_used and group.engine.n_sequences - other.n_sequences < 2:
                break
            group.engine.hand_over(sequence, other)
            job = self._by_sequence.get(sequence)
            if job is not None:
                job.running[sequence] = number
            self._wake.set()

    def _emit(self, job: Job, event: JobEvent) -> None:
        self._events.append((job.spec.job_id, event))

    def _report(self) -> None:
        """Hand over the events since the last time."""
        for job, position in self.line.moved():
            self._emit(job, Waiting(position))
        if self._events:
            events, self._events = self._events, []
            self._on_events(events)
        if self._refusing is not None and not self.jobs:
            self.drained.set()
