"""A node's socket against relays that misbehave: whatever they send, it ends with a reason and never hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection, serve

from kvasir.errors import ConfigError, EdgeError, EdgeTimeout, HandshakeRefused
from kvasir.experts import ExpertRange
from kvasir.kernels.api import RowFormat
from kvasir.relay.edge import RelayEdge, RelayEdges
from kvasir.relay.records import (
    MAX_BUNDLE_BYTES,
    MAX_MESSAGE_BYTES,
    RECORD,
    RELAY_EDGE,
    read_opening,
    record,
    record_spans,
    relay_welcome,
)
from kvasir.wire.codec import decode
from kvasir.wire.frames import (
    Dispatch,
    Fault,
    FaultCode,
    Frame,
    Goaway,
    Hello,
    Refuse,
    RefuseCode,
    Result,
    Role,
    Welcome,
)
from kvasir.wire.header import Limits
from kvasir.wire.split import ExpertCall

MODEL, KERNEL = "ab" * 32, "cd" * 32
HELLO = Hello(Role.BACKBONE, MODEL, KERNEL, "float", token="good")  # noqa: S106
WELCOME = Welcome(MODEL, KERNEL, "float", RowFormat.F32, 4, (ExpertRange(0, 0, 4),))
CREDIT = 1000

Script = Callable[["ScriptedRelay"], Awaitable[None]]


class ScriptedRelay:
    """One accepted socket; its script decides what it says."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        self.bundles: list[int] = []  # records in each message that came
        self._records: list[tuple[int, bytes]] = []

    async def greet(self) -> Hello:
        hello = read_opening(await self.socket.recv(decode=False))
        await self.say(RELAY_EDGE, relay_welcome(hello, "scripted", CREDIT))
        return hello

    async def say(self, edge: int, *frames: Frame) -> None:
        await self.socket.send(b"".join(record(edge, frame) for frame in frames))

    async def hear(self) -> tuple[int, Frame]:
        if not self._records:
            message = await self.socket.recv(decode=False)
            self._records = [(edge, message[start:stop]) for edge, start, stop in record_spans(message)]
            self.bundles.append(len(self._records))
        edge, data = self._records.pop(0)
        return edge, decode(data)


@asynccontextmanager
async def relay(script: Script) -> AsyncIterator[str]:
    async def handle(socket: ServerConnection) -> None:
        await script(ScriptedRelay(socket))

    async with serve(handle, "127.0.0.1", 0, max_size=None) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/relay"


async def dial(url: str, on_edge: Callable[[RelayEdge], None] = lambda edge: None, **options: Any) -> RelayEdges:
    return await RelayEdges.connect(url, HELLO, on_edge, **{"deadline_s": 10.0, **options})


async def ask(edge: RelayEdge, rows: int = 1) -> Any:
    values = np.ones((rows, 4), np.float32).view(np.uint8)
    call = ExpertCall(0, values, RowFormat.F32, np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32))
    return await edge.dispatch(call, 10.0)


def answer(request: int, n_pairs: int = 1) -> Result:
    return Result(request, 0, np.full((n_pairs, 4), request, np.float32))


def run(script: Script, scenario: Callable[[str], Awaitable[None]]) -> None:
    async def both() -> None:
        async with relay(script) as url:
            await asyncio.wait_for(scenario(url), 20)

    asyncio.run(both())


async def refuse(link: ScriptedRelay) -> None:
    await link.socket.recv()
    await link.say(RELAY_EDGE, Refuse(RefuseCode.MODEL, "model fingerprint: yours and mine"))
    await link.socket.close(1008)


async def garbage(link: ScriptedRelay) -> None:
    await link.socket.recv()
    await link.socket.send(b"garbage")
    await link.socket.wait_closed()


async def silence(link: ScriptedRelay) -> None:
    await link.socket.wait_closed()


async def goodbye(link: ScriptedRelay) -> None:
    await link.socket.close(1013, "later")


@pytest.mark.parametrize(
    ("script", "error", "reason"),
    [
        (refuse, HandshakeRefused, r"refused \(MODEL\): model fingerprint: yours and mine"),
        (garbage, EdgeError, "does not speak this protocol: .* within the head of a record"),
        (goodbye, EdgeError, "cannot be reached"),
        (silence, EdgeTimeout, "no answer to the hello within 0.2 s"),
    ],
)
def test_an_opening_that_fails_says_why(script: Script, error: type[Exception], reason: str) -> None:
    async def scenario(url: str) -> None:
        with pytest.raises(error, match=reason):
            await dial(url, deadline_s=0.2 if script is silence else 10.0)

    run(script, scenario)


def test_an_address_without_a_relay_behind_it() -> None:
    async def scenario(url: str) -> None:
        with pytest.raises(ConfigError, match="is not a WebSocket URL"):
            await dial("http" + url.removeprefix("ws"))

    run(silence, scenario)


def test_edges_are_told_apart_and_answers_come_in_any_order() -> None:
    async def script(link: ScriptedRelay) -> None:
        assert (await link.greet()).token == HELLO.token
        for edge in (5, 6):
            await link.say(edge, WELCOME)
        asked = [await link.hear() for _ in range(4)]
        for edge, frame in reversed(asked):
            assert isinstance(frame, Dispatch)
            await link.say(edge, Result(frame.request, 0, np.full((1, 4), edge, np.float32)))
        await link.socket.wait_closed()

    async def scenario(url: str) -> None:
        opened: asyncio.Queue[RelayEdge] = asyncio.Queue()
        edges = await dial(url, opened.put_nowait)
        five, six = await opened.get(), await opened.get()
        assert (five.number, six.number) == (5, 6)
        assert edges.edges == {five, six}
        outputs = await asyncio.gather(ask(five), ask(six), ask(six), ask(five))
        assert [out[0, 0] for out in outputs] == [5, 6, 6, 5]
        assert five.bytes_sent == six.bytes_sent > 0
        await edges.close()
        assert edges.edges == frozenset()

    run(script, scenario)


def test_what_is_asked_in_one_moment_leaves_in_one_message() -> None:
    bundles = list[int]()

    async def script(link: ScriptedRelay) -> None:
        await link.greet()
        await link.say(1, WELCOME)
        for request in range(1, 11):
            await link.hear()
            await link.say(1, answer(request))
        bundles.extend(link.bundles)
        await link.socket.wait_closed()

    async def scenario(url: str) -> None:
        opened: asyncio.Queue[RelayEdge] = asyncio.Queue()
        edges = await dial(url, opened.put_nowait)
        edge = await opened.get()
        await asyncio.gather(*(ask(edge) for _ in range(10)))
        await edges.close()

    run(script, scenario)
    assert sum(bundles) == 10
    assert len(bundles) <= 2
    assert MAX_BUNDLE_BYTES > 10 * 100


def test_the_relays_credit_bounds_what_is_under_way() -> None:
    async def script(link: ScriptedRelay) -> None:
        await link.greet()
        await link.say(1, WELCOME)
        under_way, done = 0, 0
        while done < 4:
            edge, frame = await link.hear()
            assert isinstance(frame, Dispatch)
            under_way += frame.rows.nbytes + 16 * len(frame.pair_ids)
            assert under_way <= CREDIT
            # answered only when nothing more comes within the credit
            if under_way + 12 * 32 > CREDIT:
                for request in range(done + 1, frame.request + 1):
                    await link.say(edge, answer(request, 12))
                done, under_way = frame.request, 0
        await link.socket.wait_closed()

    async def scenario(url: str) -> None:
        opened: asyncio.Queue[RelayEdge] = asyncio.Queue()
        edges = await dial(url, opened.put_nowait)
        edge = await opened.get()
        await asyncio.gather(*(ask(edge, 12) for _ in range(4)))
        await edges.close()

    run(script, scenario)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (Fault(0, FaultCode.GONE, "worker gone: lost"), r"the edge ended \(GONE\): worker gone: lost"),
        (answer(77), "request 77, which is not in flight"),
        (Goaway("new version"), "takes no dispatches now: new version"),
    ],
)
def test_an_edge_that_ends_does_not_end_the_others(end: Frame, reason: str) -> None:
    async def script(link: ScriptedRelay) -> None:
        await link.greet()
        await link.say(1, WELCOME)
        await link.say(2, WELCOME)
        for is_ended in (False, True):
            if is_ended:
                await link.say(1, end)
            while (heard := await link.hear())[0] != 2:
                pass
            assert isinstance(heard[1], Dispatch)
            await link.say(2, answer(heard[1].request))
        await link.socket.wait_closed()

    async def scenario(url: str) -> None:
        opened: asyncio.Queue[RelayEdge] = asyncio.Queue()
        edges = await dial(url, opened.put_nowait)
        one, two = await opened.get(), await opened.get()
        await ask(two)
        while one.is_available:
            await asyncio.sleep(0)
        with pytest.raises(EdgeError, match=reason):
            await ask(one)
        assert (await ask(two))[0, 0] == 2
        await edges.close()

    run(script, scenario)


@pytest.mark.parametrize("message", [b"", b"\x00", RECORD.pack(0, 3) + b"abc", record(RELAY_EDGE, HELLO)])
def test_a_relay_that_breaks_the_rules_loses_the_socket_and_all_edges(message: bytes) -> None:
    async def script(link: ScriptedRelay) -> None:
        await link.greet()
        await link.say(1, WELCOME)
        await link.hear()
        await link.socket.send(message)
        await link.socket.wait_closed()

    async def scenario(url: str) -> None:
        opened: asyncio.Queue[RelayEdge] = asyncio.Queue()
        edges = await dial(url, opened.put_nowait)
        edge = await opened.get()
        with pytest.raises(EdgeError):
            await ask(edge)
        assert url in await edges.closed
        assert edge.closed.done()

    run(script, scenario)


def test_frames_for_edges_that_were_never_opened_are_dropped() -> None:
    async def script(link: ScriptedRelay) -> None:
        await link.greet()
        await link.socket.send(RECORD.pack(9, 2) + b"xx")
        await link.say(9, answer(1))
        await link.say(9, Refuse(RefuseCode.FULL, "worker is full"))
        await link.say(3, WELCOME)
        await link.socket.wait_closed()

    async def scenario(url: str) -> None:
        opened: asyncio.Queue[RelayEdge] = asyncio.Queue()
        edges = await dial(url, opened.put_nowait)
        assert (await opened.get()).number == 3
        await edges.close()

    run(script, scenario)


def full_message(n_extra: int) -> bytes:
    """As many bytes as a message may have and `n_extra` more, in records of an edge that was never opened."""
    sizes = MAX_MESSAGE_BYTES // 2 - RECORD.size, MAX_MESSAGE_BYTES // 2 - 2 * RECORD.size + n_extra, 0
    return b"".join(RECORD.pack(9, n_bytes) + bytes(n_bytes) for n_bytes in sizes)


def test_a_message_may_have_just_the_limit() -> None:
    assert [len(full_message(n)) - MAX_MESSAGE_BYTES for n in (0, 1)] == [0, 1]

    async def script(link: ScriptedRelay) -> None:
        await link.greet()
        await link.socket.send(full_message(0))
        await link.say(3, WELCOME)
        await link.hear()  # a dispatch: the socket is in use after the largest message
        await link.socket.send(full_message(1))
        await link.socket.wait_closed()

    async def scenario(url: str) -> None:
        opened: asyncio.Queue[RelayEdge] = asyncio.Queue()
        edges = await dial(url, opened.put_nowait)
        with pytest.raises(EdgeError, match="1009"):
            await ask(await opened.get())
        assert "1009" in await edges.closed

    run(script, scenario)


def test_the_relay_says_which_node_a_worker_is_and_nobody_says_it_twice() -> None:
    async def script(link: ScriptedRelay) -> None:
        await link.greet()
        named = replace(HELLO, role=Role.WORKER, token="", name="0123456789abcdef")
        await link.say(1, named)
        await link.say(1, WELCOME)
        await link.say(2, WELCOME)  # a relay that says nothing of it
        await link.hear()
        await link.say(1, replace(named, name="another"))
        edge, fault = await link.hear()
        assert edge == 1
        assert isinstance(fault, Fault)
        assert "sent Hello" in fault.message
        await link.socket.wait_closed()

    async def scenario(url: str) -> None:
        opened: asyncio.Queue[RelayEdge] = asyncio.Queue()
        edges = await dial(url, opened.put_nowait)
        one, two = await opened.get(), await opened.get()
        assert (one.node_id, two.node_id) == ("0123456789abcdef", "")
        with pytest.raises(EdgeError, match="sent Hello"):
            await ask(one)
        await edges.close()

    run(script, scenario)


def test_a_worker_of_another_model_never_becomes_an_edge() -> None:
    async def script(link: ScriptedRelay) -> None:
        await link.greet()
        other = Welcome("00" * 32, KERNEL, "float", RowFormat.F32, 4, ())
        await link.say(1, other)
        edge, fault = await link.hear()
        assert edge == 1
        assert isinstance(fault, Fault)
        assert "model fingerprint" in fault.message
        await link.say(2, WELCOME)
        await link.socket.wait_closed()

    async def scenario(url: str) -> None:
        opened: asyncio.Queue[RelayEdge] = asyncio.Queue()
        edges = await dial(url, opened.put_nowait)
        assert (await opened.get()).number == 2
        await edges.close()

    run(script, scenario)


def test_nothing_is_compressed() -> None:
    """The relay of this test would agree to it."""

    async def script(link: ScriptedRelay) -> None:
        await link.greet()
        assert link.socket.protocol.extensions == []
        await link.say(1, WELCOME)
        await link.socket.wait_closed()

    async def scenario(url: str) -> None:
        opened: asyncio.Queue[RelayEdge] = asyncio.Queue()
        edges = await dial(url, opened.put_nowait)
        await opened.get()
        await edges.close()

    run(script, scenario)


def test_the_hello_that_is_checked_against_holds_the_credit() -> None:
    async def script(link: ScriptedRelay) -> None:
        hello = await link.greet()
        assert hello.limits == Limits()
        await link.socket.wait_closed()

    async def scenario(url: str) -> None:
        edges = await dial(url)
        await edges.close("done")
        assert await edges.closed == "done"

    run(script, scenario)
