"""Waits for a batch's answer, and asks somebody else when it is late: the first usable answer counts.

`dispatch.dispatcher` makes one `Attempt` a worker that is asked. An attempt that is given up is not cancelled: its
answer is dropped when it comes, but the transport measures it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from backbone.engine.swarm.placement import DispatchBatch
from kvasir.errors import EdgeError
from kvasir.experts import ExpertRange, FloatRows
from kvasir.kernels.sums import RowSums

LATE = "no result within the worker's usual time"

Answer = FloatRows | RowSums
Heard = Answer | EdgeError


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

    `held` are the ranges that its local ids were counted through.
    """

    batch: DispatchBatch
    heard: asyncio.Future[Heard]
    due: float
    held: tuple[ExpertRange, ...] | None = None
    late_reason: str = LATE


def listen(future: Future[FloatRows] | Future[RowSums]) -> asyncio.Future[Heard]:
    """A transport's future as one of the running loop. Its errors are values, and cancelling it cancels nothing."""
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[Heard] = loop.create_future()

    def settle(outcome: Heard) -> None:
        if not heard.done():
            heard.set_result(outcome)

    def pass_on(done: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            loop.call_soon_threadsafe(settle, _outcome(done))

    future.add_done_callback(pass_on)
    return heard


async def first_heard(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Wait until an attempt is heard or due; those that were heard, none when one is due."""
    waiting = list(attempts)
    timeout = min(attempt.due for attempt in waiting) - asyncio.get_running_loop().time()
    await asyncio.wait(
        [attempt.heard for attempt in waiting], timeout=max(timeout, 0.0), return_when=asyncio.FIRST_COMPLETED
    )
    return [attempt for attempt in waiting if attempt.heard.done()]


def _outcome(done: Future[Any]) -> Heard:
    if done.cancelled():
        return EdgeError("the dispatch was cancelled")
    error = done.exception()
    if error is None:
        answer: Answer = done.result()
        return answer
    return error if isinstance(error, EdgeError) else EdgeError(f"the dispatch failed: {error!r}")
