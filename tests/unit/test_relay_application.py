"""The relay's application over plain ASGI queues: openings, deadlines, pairing, refusals and the order of a stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kvasir.experts import ExpertRange
from kvasir.kernels.api import RowFormat
from kvasir.relay.records import RELAY_EDGE, opening_message, record, record_spans
from kvasir.wire.codec import decode
from kvasir.wire.frames import Fault, FaultCode, Frame, Goaway, Hello, Ping, Pong, Refuse, RefuseCode, Role, Welcome
from kvasir.wire.header import Kind, Limits
from market.nodes.tokens import TokenHolder, TokenRefusedError, TokenScope
from relay.sockets.application import MAX_STRANGERS, RelayApplication
from relay.sockets.hub import Hub, HubLimits
from relay.sockets.usage import Usage
from tests.swarm.relay_process import as_record, frame

MODEL, KERNEL = "ab" * 32, "cd" * 32
WELCOME = Welcome(MODEL, KERNEL, "kx1", RowFormat.KX1, 256, (ExpertRange(0, 0, 4),))


async def check_token(text: str, scope: TokenScope) -> TokenHolder:
    if text == "slow":
        await asyncio.Event().wait()
    if text != "good":
        raise TokenRefusedError("token: it is not known here")
    return TokenHolder("0123456789abcdef", "a node", scope)


@dataclass
class Relay:
    """A hub and its application, with a clock that only the test moves."""

    now: float = 100.0
    limits: HubLimits = field(default_factory=HubLimits)
    usage: list[Usage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hub = Hub("r1", self.usage.append, lambda: self.now, self.limits)
        self.application = RelayApplication(self.hub, check_token, hello_deadline_s=0.05)


class Node:
    """The other end of one ASGI socket."""

    def __init__(self, relay: Relay, role: Role = Role.WORKER, *, gate: asyncio.Event | None = None) -> None:
        self.role = role
        self.gate = gate
        self.limit = 0
        self.closed: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self._to_relay: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._records: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        scope = {"type": "websocket", "extensions": {"kvasir.socket": {"accept_messages_up_to": self._set_limit}}}
        self._to_relay.put_nowait({"type": "websocket.connect"})
        self.serving = asyncio.create_task(relay.application(scope, self._to_relay.get, self._from_relay))

    def _set_limit(self, n_bytes: int) -> None:
        self.limit = n_bytes

    async def _from_relay(self, message: Any) -> None:
        if message["type"] == "websocket.close":
            self.closed.set_result((message["code"], message["reason"]))
            self._to_relay.put_nowait({"type": "websocket.disconnect", "code": message["code"]})
        elif message["type"] == "websocket.send":
            data = message["bytes"]
            for edge, start, stop in record_spans(data):
                self._records.put_nowait((edge, data[start:stop]))
            if self.gate is not None:
                await self.gate.wait()

    def send(self, data: bytes) -> None:
        self._to_relay.put_nowait({"type": "websocket.receive", "bytes": data})

    def hello(self, **changes: Any) -> Hello:
        return replace(Hello(self.role, MODEL, KERNEL, "kx1", token="good"), **changes)  # noqa: S106

    async def next(self) -> tuple[int, Frame]:
        edge, data = await asyncio.wait_for(self._records.get(), 5)
        return edge, decode(data)

    async def join(self, **changes: Any) -> Welcome:
        self.send(opening_message(self.hello(**changes)))
        edge, answer = await self.next()
        assert edge == RELAY_EDGE
        assert isinstance(answer, Welcome), answer
        return answer

    async def refusal(self, message: bytes) -> Refuse:
        self.send(message)
        return await self.refused()

    async def refused(self) -> Refuse:
        edge, answer = await self.next()
        assert edge == RELAY_EDGE
        assert isinstance(answer, Refuse), answer
        code, reason = await asyncio.wait_for(self.closed, 5)
        assert (code, reason) == (1008, answer.message)
        await asyncio.wait_for(self.serving, 5)
        return answer

    async def leave(self, code: int = 1006, reason: str = "") -> None:
        self._to_relay.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        await asyncio.wait_for(self.serving, 5)


def run(scenario: Callable[[Relay], Awaitable[None]], relay: Relay | None = None) -> None:
    asyncio.run(_run(scenario, relay or Relay()))


async def _run(scenario: Callable[[Relay], Awaitable[None]], relay: Relay) -> None:
    await scenario(relay)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def pair(relay: Relay, limits: Limits | None = None) -> tuple[Node, Node, int]:
    backbone, worker = Node(relay, Role.BACKBONE), Node(relay)
    await backbone.join(**({"limits": limits} if limits else {}))
    await worker.join()
    edge, hello = await worker.next()
    assert isinstance(hello, Hello)
    worker.send(record(edge, WELCOME))
    named, who = await backbone.next()
    assert (named, type(who)) == (edge, Hello)
    assert await backbone.next() == (edge, WELCOME)
    return backbone, worker, edge


def test_the_backbone_hears_which_node_a_worker_is_without_its_token() -> None:
    async def scenario(relay: Relay) -> None:
        backbone, worker = Node(relay, Role.BACKBONE), Node(relay)
        await backbone.join()
        await worker.join(name="another node's id")
        edge, _ = await worker.next()
        worker.send(record(edge, WELCOME))
        assert await backbone.next() == (edge, worker.hello(token="", name="0123456789abcdef"))
        assert await backbone.next() == (edge, WELCOME)

    run(scenario)


def test_the_worker_hears_the_backbones_hello_without_its_token_and_within_the_credit() -> None:
    async def scenario(relay: Relay) -> None:
        backbone, worker = Node(relay, Role.BACKBONE), Node(relay)
        welcome = await backbone.join(limits=Limits(max_inflight_bytes=10**9), name="b")
        assert welcome.limits.max_inflight_bytes == relay.limits.credit_bytes
        assert backbone.limit > 8 * 1024 * 1024
        await worker.join()
        _, hello = await worker.next()
        credit = Limits(max_inflight_bytes=relay.limits.credit_bytes)
        assert hello == backbone.hello(token="", limits=credit, name="b")

    run(scenario)


def test_whoever_comes_first_everyone_who_agrees_is_paired() -> None:
    async def scenario(relay: Relay) -> None:
        workers = [Node(relay) for _ in range(2)]
        for worker in workers:
            await worker.join()
        backbones = [Node(relay, Role.BACKBONE) for _ in range(2)]
        for backbone in backbones:
            await backbone.join()
        edges = [(await worker.next())[0] for worker in workers for _ in backbones]
        assert len(set(edges)) == 4

    run(scenario)


def test_no_hello_in_time_and_a_token_check_that_hangs_end_with_the_deadline() -> None:
    async def scenario(relay: Relay) -> None:
        silent, hanging = Node(relay), Node(relay)
        hanging.send(opening_message(hanging.hello(token="slow")))  # noqa: S106
        assert (await silent.refused()).code is RefuseCode.DEADLINE
        assert (await hanging.refused()).code is RefuseCode.DEADLINE

    run(scenario)


def test_a_bad_token_is_refused() -> None:
    async def scenario(relay: Relay) -> None:
        node = Node(relay)
        refusal = await node.refusal(opening_message(node.hello(token="bad")))  # noqa: S106
        assert (refusal.code, refusal.message) == (RefuseCode.TOKEN, "token: it is not known here")

    run(scenario)


def test_a_worker_is_told_the_disagreement_that_comes_nearest() -> None:
    async def scenario(relay: Relay) -> None:
        for changes in ({"model_fingerprint": "00" * 32}, {"kernel_fingerprint": "11" * 32}):
            await Node(relay, Role.BACKBONE).join(**changes)
        worker = Node(relay)
        refusal = await worker.refusal(opening_message(worker.hello()))
        assert refusal.code is RefuseCode.KERNEL
        assert "11" * 32 in refusal.message
        assert KERNEL in refusal.message

    run(scenario)


def test_a_relay_that_is_full_says_so() -> None:
    async def scenario(relay: Relay) -> None:
        await Node(relay).join()
        node = Node(relay)
        assert (await node.refusal(opening_message(node.hello()))).code is RefuseCode.FULL

    run(scenario, Relay(limits=HubLimits(max_sessions=1)))


def test_so_many_strangers_may_wait_and_one_more_is_refused_at_once() -> None:
    async def scenario(relay: Relay) -> None:
        strangers = [Node(relay) for _ in range(MAX_STRANGERS)]
        refusal = await Node(relay).refused()
        assert (refusal.code, refusal.message) == (RefuseCode.FULL, f"{MAX_STRANGERS} sockets have yet to say hello")
        assert not any(node.closed.done() for node in strangers)
        await strangers[0].join()  # who says hello is no stranger any more
        newcomer = Node(relay)
        await newcomer.join()

    patient = Relay()
    patient.application = RelayApplication(patient.hub, check_token)
    run(scenario, patient)


def test_usage_is_recorded_once_with_its_mood() -> None:
    async def scenario(relay: Relay) -> None:
        backbone, worker, edge = await pair(relay)
        asked = frame(Kind.DISPATCH, 1, b"rows", reply_bytes=8)
        backbone.send(as_record(edge, asked))
        assert (await worker._records.get()) == (edge, asked)
        answer = frame(Kind.RESULT, 1, b"outputs!")
        worker.send(as_record(edge, answer))
        assert (await backbone._records.get()) == (edge, answer)
        relay.now += 12.5
        await worker.leave(1006, "no sign of life")
        _, fault = await backbone.next()
        assert fault == Fault(0, FaultCode.GONE, "worker gone: socket closed (1006: no sign of life)")
        [usage] = relay.usage
        assert (usage.edge, usage.seconds, usage.relay_id) == (edge, 12.5, "r1")
        assert usage.mood == "worker gone: socket closed (1006: no sign of life)"
        traffic = usage.traffic
        assert (traffic.frames_to_worker, traffic.bytes_to_worker) == (1, len(asked))
        assert traffic.frames_to_backbone == 2
        await backbone.leave()
        assert len(relay.usage) == 1

    run(scenario)


def test_a_side_that_ends_an_edge_is_not_told_again() -> None:
    async def scenario(relay: Relay) -> None:
        backbone, worker, edge = await pair(relay)
        backbone.send(record(edge, Fault(0, FaultCode.PROTOCOL, "no more")))
        assert await worker.next() == (edge, Fault(0, FaultCode.PROTOCOL, "no more"))
        worker.send(record(RELAY_EDGE, Ping(5)))
        assert await worker.next() == (RELAY_EDGE, Pong(5))
        assert relay.usage[0].mood == "ended by the backbone"
        worker.send(as_record(edge, frame(Kind.RESULT, 1, b"")))  # was on its way: dropped, not a breach
        worker.send(record(RELAY_EDGE, Ping(6)))
        assert await worker.next() == (RELAY_EDGE, Pong(6))

    run(scenario)


def test_a_stop_is_announced_nobody_new_is_let_in_and_all_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kvasir.edge.states")

    async def scenario(relay: Relay) -> None:
        backbone, worker, edge = await pair(relay)
        backbone.send(as_record(edge, frame(Kind.DISPATCH, 1, b"rows", reply_bytes=8)))
        await worker._records.get()
        relay.hub.announce_stop("new version")
        for node in (backbone, worker):
            assert await node.next() == (RELAY_EDGE, Goaway("new version"))
        late = Node(relay)
        assert (await late.refusal(opening_message(late.hello()))).code is RefuseCode.STOPPING
        assert relay.hub.n_owed == 1
        worker.send(as_record(edge, frame(Kind.RESULT, 1, b"outputs!")))
        await backbone._records.get()
        assert relay.hub.n_owed == 0
        relay.hub.close_all("new version")
        for node in (backbone, worker):
            assert await asyncio.wait_for(node.closed, 5) == (1012, "new version")
            await asyncio.wait_for(node.serving, 5)
        assert not list(relay.hub.sessions)

    run(scenario)
    logged = [record.getMessage().split(": ") for record in caplog.records if record.name == "kvasir.edge.states"]
    lives = [[change for owner, change in logged if owner == name] for name in sorted({owner for owner, _ in logged})]
    session = ["CONNECTING -> JOINED", "JOINED -> GOING_AWAY", "GOING_AWAY -> PARTING", "PARTING -> CLOSED"]
    assert lives == [["HANDSHAKE -> OPEN", "OPEN -> CLOSED"], session, session]


def test_who_does_not_read_is_closed_after_the_write_deadline() -> None:
    async def scenario(relay: Relay) -> None:
        gate = asyncio.Event()
        worker = Node(relay)
        await worker.join()
        worker.gate = gate
        worker.send(record(RELAY_EDGE, Ping(1)))
        await worker.next()
        # the outbox reads the loop's clock; the hub's is moved far ahead of it
        relay.now = asyncio.get_running_loop().time() + 59
        relay.hub.close_stalled()
        assert not worker.closed.done()
        relay.now += 2
        relay.hub.close_stalled()
        code, reason = await asyncio.wait_for(worker.closed, 5)
        assert (code, reason) == (1008, "a message was not read within 60 s")

    run(scenario)


def test_a_slow_backbone_makes_its_workers_wait_and_a_slow_worker_nobody() -> None:
    async def scenario(relay: Relay) -> None:
        backbone, worker, edge = await pair(relay)
        backbone.gate = asyncio.Event()
        payload = bytes(1024 * 1024)
        for request in range(1, 8):
            backbone.send(as_record(edge, frame(Kind.DISPATCH, request, b"r", reply_bytes=len(payload))))
            await worker._records.get()
        for request in range(1, 8):
            worker.send(as_record(edge, frame(Kind.RESULT, request, payload)))
        for _ in range(50):
            await asyncio.sleep(0)
        [session] = [s for s in relay.hub.sessions if s.hello.role is Role.BACKBONE]
        assert session.outbox.queued_bytes < 5 * len(payload)
        assert worker._to_relay.qsize() >= 2
        backbone.gate.set()
        for _ in range(7):
            assert (await asyncio.wait_for(backbone._records.get(), 5))[0] == edge

    run(scenario)


def test_only_websockets_are_served() -> None:
    async def scenario(relay: Relay) -> None:
        with pytest.raises(ValueError, match="http"):
            await relay.application({"type": "http"}, asyncio.Queue().get, lambda message: asyncio.sleep(0))

    run(scenario)
