"""Runs the engine service's own core over any transport on a `CpuLoop`, and says how fast it was.

The benchmarks of the emulated swarm call it; the same run without workers is their reference.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from backbone.engine.dispatch.counters import Served, Tally
from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.dispatch.hedging import DeadlineRule
from backbone.engine.serving.engine import StepExperts
from backbone.engine.serving.jobs import Broken, Completed, Job, JobEvents, JobSpec, NewToken
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.micro_batches import MOST_GROUPS, GroupPlanner
from backbone.engine.serving.service import ServiceLimits, make_groups
from backbone.engine.serving.service_core import ServiceCore
from backbone.engine.swarm.sum_scale import SumScale
from backbone.engine.swarm.transport import Transport
from backbone.engine.trust.receipts import TrafficCounter
from backbone.sampling_params import SamplingParams
from benchmarks.emulator.clock import CpuLoop
from market.coverage.scarcity import Counts

PATIENCE_S = 1000.0  # no answer is late in an emulation without losses, however slow it runs
REPLAN_S = 0.5
NEVER = -100.0  # added to a logit
VISITOR = "visitor"
N_VISITOR_TOKENS = 6


@dataclass(frozen=True, slots=True)
class Load:
    """Prompts that come at once, and the tokens of each answer: `n_warm`, then `n_timed` by the clock, then more."""

    prompts: tuple[tuple[int, ...], ...]
    n_warm: int
    n_timed: int
    n_more: int = 2

    @property
    def n_tokens(self) -> int:
        """Tokens of each answer."""
        return self.n_warm + self.n_timed + self.n_more


@dataclass(frozen=True, slots=True, eq=False)
class Emulated:
    """The outcome of a run. `utilisation` is the share of the timed part in which the backbone computed."""

    token_ids: list[list[int]]
    tok_s: float
    utilisation: float
    n_groups: int  # in which most of the timed tokens were made
    n_fallback: int  # pairs that the backbone computed itself
    traffic: Counts


class _Moment(NamedTuple):
    """When a token came: on the loop's clock, after how much work of the backbone, and the number of groups in use."""

    at: float
    busy_s: float
    n_groups: int


@dataclass(slots=True, eq=False)
class _Log:
    """Tokens, and when each came."""

    loop: CpuLoop
    planner: GroupPlanner
    n_jobs: int = 0
    tokens: dict[str, list[int]] = field(default_factory=dict)
    moments: dict[str, list[_Moment]] = field(default_factory=dict)
    n_ended: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, n_jobs: int) -> None:
        """Wait from now on for this number of jobs to end."""
        self.n_jobs, self.n_ended = n_jobs, 0
        self.ended.clear()

    def __call__(self, events: JobEvents) -> None:
        now = _Moment(self.loop.time(), self.loop.busy_s, self.planner.n_groups)
        for job_id, event in events:
            if isinstance(event, NewToken):
                self.tokens.setdefault(job_id, []).append(event.sampled.token)
                self.moments.setdefault(job_id, []).append(now)
            elif isinstance(event, Broken):
                raise RuntimeError(f"{job_id}: {event.failure.message}")
            elif isinstance(event, Completed):
                self.n_ended += 1
                if self.n_ended == self.n_jobs:
                    self.ended.set()


def run_emulated(
    loaded: LoadedModel,
    make_transport: Callable[[CpuLoop], Transport],
    load: Load,
    *,
    sum_scale: SumScale | None = None,
    n_groups: int | None = None,
    deadline_s: float = PATIENCE_S,
) -> Emulated:
    """Serve a load by itself; `n_groups` None: as many as the planner takes. Greedy, and nothing ends early."""
    loop = CpuLoop()
    try:
        transport = make_transport(loop)
        return loop.run_until_complete(_serve(loop, loaded, transport, load, sum_scale, n_groups, deadline_s))
    finally:
        loop.close()


async def _serve(
    loop: CpuLoop,
    loaded: LoadedModel,
    transport: Transport,
    load: Load,
    sum_scale: SumScale | None,
    n_groups: int | None,
    deadline_s: float,
) -> Emulated:
    most = n_groups or MOST_GROUPS
    planner = GroupPlanner(most, is_fixed=n_groups is not None, replan_s=REPLAN_S)
    tally, log = Tally(), _Log(loop, planner)
    traffic = TrafficCounter(loaded.card.n_layer, loaded.card.n_expert)

    def make_experts(on_served: Callable[[Served], None]) -> StepExperts:
        def count(served: Served) -> None:
            on_served(served)
            tally.add(served)

        return ExpertDispatcher(
            loaded.store,
            transport,
            deadlines=DeadlineRule(deadline_s, deadline_s),
            on_served=count,
            traffic=traffic,
            sum_scale=sum_scale,
        )

    core = ServiceCore(
        make_groups(loaded, make_experts, ServiceLimits(), most),
        n_slot=loaded.model.cache.n_slot,
        max_waiting=len(load.prompts),
        clock=loop.time,
        on_events=log,
        planner=planner,
        busy_clock=lambda: loop.busy_s,
    )
    await _run_to_the_end(core, _visitor(loaded, load), _jobs(loaded, load), log)
    return _result(load, log, tally, np.asarray(traffic.take()))


async def _run_to_the_end(core: ServiceCore, visitor: Job, jobs: Sequence[Job], log: _Log) -> None:
    stepping = asyncio.ensure_future(core.run())
    for part in ([visitor], jobs):
        log.begin(len(part))
        for job in part:
            core.submit(job)
        ended = asyncio.ensure_future(log.ended.wait())
        await asyncio.wait([stepping, ended], return_when=asyncio.FIRST_COMPLETED)
        if stepping.done():
            stepping.result()
    stepping.cancel()
    await asyncio.gather(stepping, return_exceptions=True)


def _visitor(loaded: LoadedModel, load: Load) -> Job:
    """Comes alone and first, as to any swarm in use: every worker is known from a few small calls."""
    return _job(loaded, VISITOR, load.prompts[0], N_VISITOR_TOKENS)


def _jobs(loaded: LoadedModel, load: Load) -> list[Job]:
    return [_job(loaded, str(number), prompt, load.n_tokens) for number, prompt in enumerate(load.prompts)]


def _job(loaded: LoadedModel, name: str, prompt: tuple[int, ...], n_tokens: int) -> Job:
    bias = dict.fromkeys(loaded.tokenizer.eog_ids, NEVER)
    params = SamplingParams(temperature=0.0, max_tokens=n_tokens, logit_bias=bias)
    return Job(JobSpec(name, prompt, params, 1e9), loaded.tokenizer, 1e12)


def _result(load: Load, log: _Log, tally: Tally, traffic: Counts) -> Emulated:
    """Each answer counts by its own timed part; the backbone's work is that from the first one's to the last one's."""
    names = [str(number) for number in range(len(load.prompts))]
    timed = [log.moments[name][load.n_warm - 1 : load.n_warm + load.n_timed] for name in names]
    begin, end = min(part[0] for part in timed), max(part[-1] for part in timed)
    return Emulated(
        token_ids=[log.tokens[name] for name in names],
        tok_s=sum(load.n_timed / (part[-1].at - part[0].at) for part in timed),
        utilisation=(end.busy_s - begin.busy_s) / (end.at - begin.at),
        n_groups=Counter(moment.n_groups for part in timed for moment in part).most_common(1)[0][0],
        n_fallback=tally.n_fallback,
        traffic=traffic,
    )
