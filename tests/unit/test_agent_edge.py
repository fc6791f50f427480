"""Handing over at the relay: the new edges first, then both for a moment, then the old ones leave in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kvasir.worker.agent.edge import HANDOVER_S, OVERLAP_S, AgentEdge
from tests.unit.fake_experts import fake_holdings
from tests.unit.virtual_time import VirtualLoop, run, settle

URL = "wss://relay.test/relay"


class FakeWorker:
    """A `RelayWorker` that joins when the test says so."""

    def __init__(self, relay: Any, holdings: Any, *, on_joined: Callable[[], None], on_lost: Callable[[str], None]):
        self.relay, self.holdings, self.join, self.lose = relay, holdings, on_joined, on_lost
        self.stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        await self.stopped

    def stop(self, reason: str) -> None:
        if not self.stopped.done():
            self.stopped.set_result(reason)


class Relay:
    """Workers as they were made, and what the edge has said."""

    def __init__(self, joins: bool = True) -> None:
        self.joins = joins
        self.workers: list[FakeWorker] = []
        self.said: list[bool] = []
        self.edge = AgentEdge(lambda is_joined, _: self.said.append(is_joined), self._make)

    def _make(self, *args: Any, **callbacks: Any) -> FakeWorker:
        worker = FakeWorker(*args, **callbacks)
        self.workers.append(worker)
        if self.joins:
            asyncio.get_running_loop().call_soon(worker.join)
        return worker

    async def serve(self) -> bool:
        return await self.edge.serve(fake_holdings(), URL, "kvs-token")


def test_the_first_edges_open_with_address_and_token() -> None:
    async def test(_: VirtualLoop) -> None:
        relay = Relay()
        assert await relay.serve()
        assert (relay.workers[0].relay.url, relay.workers[0].relay.token) == (URL, "kvs-token")
        assert relay.said[-1] is True
        await relay.edge.stop("done")
        assert relay.workers[0].stopped.result() == "done"

    run(test)


def test_old_edges_leave_only_after_both_have_served() -> None:
    async def test(loop: VirtualLoop) -> None:
        relay = Relay()
        await relay.serve()
        began = loop.time()
        assert await relay.serve()
        await asyncio.sleep(OVERLAP_S - 0.1)
        assert not relay.workers[0].stopped.done()
        await asyncio.sleep(0.2)
        assert relay.workers[0].stopped.done()
        assert loop.time() - began < OVERLAP_S + 1
        assert not relay.workers[1].stopped.done()
        relay.workers[0].lose("gone")
        assert relay.said[-1] is True  # it does not count any more
        await relay.edge.stop("done")

    run(test)


def test_edges_that_work_are_kept_when_new_ones_cannot_be_had() -> None:
    async def test(loop: VirtualLoop) -> None:
        relay = Relay()
        await relay.serve()
        relay.joins, began = False, loop.time()
        assert not await relay.serve()
        assert loop.time() - began == HANDOVER_S
        assert [worker.stopped.done() for worker in relay.workers] == [False, True]
        await relay.edge.stop("done")

    run(test)


def test_without_a_relay_the_new_holdings_wait_for_it() -> None:
    async def test(_: VirtualLoop) -> None:
        relay = Relay(joins=False)
        assert await relay.serve()
        assert await relay.serve()
        await asyncio.sleep(OVERLAP_S)
        assert [worker.stopped.done() for worker in relay.workers] == [True, False]
        assert relay.said[-1] is False
        relay.workers[1].join()
        assert relay.said[-1] is True
        await relay.edge.stop("done")

    run(test)


def test_a_stop_ends_all_of_them_at_once() -> None:
    async def test(_: VirtualLoop) -> None:
        relay = Relay()
        await relay.serve()
        await relay.serve()
        await relay.edge.stop("done")
        assert all(worker.stopped.done() for worker in relay.workers)
        assert not relay.edge.is_serving

    run(test)


def test_a_handover_that_is_cancelled_leaves_the_old_edges() -> None:
    async def test(loop: VirtualLoop) -> None:
        relay = Relay()
        await relay.serve()
        relay.joins = False
        task = loop.create_task(relay.serve())
        await settle()
        task.cancel()
        await settle()
        assert [worker.stopped.done() for worker in relay.workers] == [False, True]
        await relay.edge.stop("done")

    run(test)


def test_a_defect_is_told() -> None:
    async def test(_: VirtualLoop) -> None:
        relay = Relay()
        await relay.serve()
        relay.workers[0].stopped.set_exception(ZeroDivisionError())
        await settle()
        assert (relay.said[-1], relay.edge.is_serving) == (False, False)

    run(test)
