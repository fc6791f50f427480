"""Waits for a batch's answer, and decides when it is late: then another worker is asked, and the first answer counts.

`dispatch.dispatcher` makes one `Attempt` for each worker that it asks. An attempt that is given up is not cancelled:
its answer is dropped when it comes, but the transport measures it, so a worker that became slower gets more time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from backbone.engine.swarm.measured import Measured
from backbone.engine.swarm.placement import DispatchBatch
from kvasir.errors import EdgeError
from kvasir.experts import ExpertRange
from kvasir.wire.split import Answer

LATE = "no result within the worker's usual time"

Heard = Answer | EdgeError


@dataclass(frozen=True, slots=True)
class DeadlineRule:
    """How long an answer is waited for: `factor` times the `quantile` of the worker's answers, within limits.

    The limits are `shortest_s` and `longest_s`; a worker with fewer than `min_answers` gets `longest_s`, which is also
    the deadline that the transport keeps. A call that the transport has not ended `grace_s` later is given up.
    """

    longest_s: float = 10.0
    shortest_s: float = 0.25
    quantile: float = 0.99
    factor: float = 2.0
    min_answers: int = 64
    grace_s: float = 2.0


def patience_s(measured: Measured, n_pairs: int, rule: DeadlineRule) -> float:
    """Return the seconds to wait for an answer to `n_pairs` that are sent now."""
    if measured.n_answers < rule.min_answers:
        return rule.longest_s
    usual_s = measured.expected_s(n_pairs) * measured.ratios.quantile(rule.quantile)
    return min(max(rule.factor * usual_s, rule.shortest_s), rule.longest_s)


@dataclass(slots=True)
class HedgeCounters:
    """What became of answers that were late."""

    n_late: int = 0
    n_to_replica: int = 0  # another worker was asked
    n_won_by_replica: int = 0  # and its answer was used
    n_to_own: int = 0  # the backbone's own replica computed


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One worker that was asked, and when it is late: `due` is a reading of the loop's clock.

    `held` are the ranges through which its local ids were counted.
    """

    batch: DispatchBatch
    heard: asyncio.Future[Heard]
    due: float
    held: tuple[ExpertRange, ...] | None = None
    late_reason: str = LATE


def listen(future: Future[Answer]) -> asyncio.Future[Heard]:
    """Return a transport's future as one of the running loop. Errors are values; cancelling it cancels nothing."""
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[Heard] = loop.create_future()

    def settle(outcome: Heard) -> None:
        if not heard.done():
            heard.set_result(outcome)

    def pass_on(done: Future[Answer]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing waits any more
            loop.call_soon_threadsafe(settle, _outcome(done))

    future.add_done_callback(pass_on)
    return heard


async def first_heard(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Wait until an attempt is heard or due. Returns those that were heard, none when one is due."""
    waiting = list(attempts)
    timeout = min(attempt.due for attempt in waiting) - asyncio.get_running_loop().time()
    await asyncio.wait(
        [attempt.heard for attempt in waiting], timeout=max(timeout, 0.0), return_when=asyncio.FIRST_COMPLETED
    )
    return [attempt for attempt in waiting if attempt.heard.done()]


def _outcome(done: Future[Answer]) -> Heard:
    if done.cancelled():
        return EdgeError("the dispatch was cancelled")
    error = done.exception()
    if error is None:
        return done.result()
    return error if isinstance(error, EdgeError) else EdgeError(f"the dispatch failed: {error!r}")
