"""Frames through a real relay: byte-identical at every length, each to its own edge, and none lost to a slow reader."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest
from websockets.asyncio.client import connect

from kvasir.relay.records import MAX_FRAME_BYTES
from kvasir.wire.frames import Fault, Goaway
from kvasir.wire.header import HEADER_BYTES, Kind
from tests.swarm.relay_process import (
    RelayProcess,
    as_record,
    backbone_at,
    frame,
    pair,
    relay_process,
    sandbox,
    still_serves,
    worker_at,
)

MIB = 1024 * 1024
LENGTHS = [0, 1, 65_535, 65_536, 65_537, MIB - 1, MIB, MIB + 1, 8 * MIB]


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    with sandbox(tmp_path_factory) as process:
        yield process


@pytest.mark.parametrize("whole_frame", [False, True], ids=["payload", "frame"])
def test_frames_arrive_byte_identical_in_both_directions(relay: RelayProcess, whole_frame: bool) -> None:
    lengths = [n for n in (m - HEADER_BYTES if whole_frame else m for m in LENGTHS) if n >= 0]

    async def scenario() -> None:
        async with backbone_at(relay) as backbone, worker_at(relay) as worker:
            edge = await pair(relay, backbone, worker)
            for request, length in enumerate(lengths, 1):
                asked = frame(Kind.DISPATCH, request, random.Random(length).randbytes(length), reply_bytes=length)
                await backbone.send(edge, asked)
                assert await worker.receive() == (edge, asked)
                answer = frame(Kind.RESULT, request, random.Random(-length).randbytes(length))
                await worker.send(edge, answer)
                assert await backbone.receive() == (edge, answer)
            assert len(asked) <= MAX_FRAME_BYTES

    asyncio.run(scenario())


def test_the_relay_compresses_nothing_even_when_asked(relay: RelayProcess) -> None:
    async def scenario() -> None:
        async with connect(relay.url, compression="deflate", proxy=None) as socket:
            assert socket.response is not None
            assert "Sec-WebSocket-Extensions" not in socket.response.headers
            socket.transport.abort()

    asyncio.run(scenario())


def test_a_bundle_is_split_and_answers_keep_their_edge(relay: RelayProcess) -> None:
    async def scenario() -> None:
        async with (
            backbone_at(relay) as backbone,
            worker_at(relay) as one,
            worker_at(relay) as two,
        ):
            first = await pair(relay, backbone, one)
            await two.join()
            second = await two.bridge()
            assert await backbone.bridge() == second
            asked = {
                (edge, n): frame(Kind.DISPATCH, n, bytes([edge % 256, n]))
                for edge in (first, second)
                for n in (1, 2, 3)
            }
            await backbone.socket.send(b"".join(as_record(edge, data) for (edge, _), data in asked.items()))
            for worker, edge in ((two, second), (one, first)):
                for n in (1, 2, 3):
                    assert await worker.receive() == (edge, asked[edge, n])
                    await worker.send(edge, frame(Kind.RESULT, n, bytes([edge % 256])))
            answers = sorted([await backbone.receive() for _ in range(6)])
            assert answers == sorted((edge, frame(Kind.RESULT, n, bytes([edge % 256]))) for edge, n in asked)

    asyncio.run(scenario())


def test_two_backbones_share_a_worker_without_mixing(relay: RelayProcess) -> None:
    async def scenario() -> None:
        async with (
            backbone_at(relay) as one,
            backbone_at(relay) as two,
            worker_at(relay) as worker,
        ):
            await one.join()
            await two.join()
            await worker.join()
            edges = {await worker.bridge(), await worker.bridge()}
            assert {await one.bridge(), await two.bridge()} == edges
            for backbone in (one, two):
                await backbone.send(backbone.edge, frame(Kind.DISPATCH, 1, bytes([backbone.edge])))
            for _ in range(2):
                edge, data = await worker.receive()
                await worker.send(edge, frame(Kind.RESULT, 1, data[HEADER_BYTES:]))
            for backbone in (one, two):
                assert await backbone.receive() == (backbone.edge, frame(Kind.RESULT, 1, bytes([backbone.edge])))
            two.socket.transport.abort()
            edge, farewell = await worker.receive_frame()
            assert (edge, isinstance(farewell, Fault)) == (two.edge, True)
            await still_serves(one, worker, one.edge, 2)

    asyncio.run(scenario())


def test_a_worker_that_reads_nothing_costs_its_credit_and_stalls_nobody(relay: RelayProcess) -> None:
    async def scenario() -> None:
        async with (
            backbone_at(relay) as backbone,
            worker_at(relay) as slow,
            worker_at(relay) as quick,
        ):
            slow_edge = await pair(relay, backbone, slow)
            await quick.join()
            edge = await quick.bridge()
            assert await backbone.bridge() == edge
            slow.socket.transport.pause_reading()
            n_busy, n_sent = 0, 64
            for request in range(1, n_sent + 1):
                await backbone.send(slow_edge, frame(Kind.DISPATCH, request, bytes(MIB)))
            for request in range(1, 20):
                asked = frame(Kind.DISPATCH, request, b"rows")
                await backbone.send(edge, asked)
                assert await quick.receive() == (edge, asked)
                await quick.send(edge, frame(Kind.RESULT, request, b"out!"))
                while (answer := await backbone.receive())[0] == slow_edge:
                    n_busy += 1
                assert answer == (edge, frame(Kind.RESULT, request, b"out!"))
            # 8 MiB may wait for a worker: the rest was refused at once, by number
            assert n_busy == n_sent - 8

    asyncio.run(scenario())


def test_a_lost_worker_fails_its_edge_at_once_and_no_other(relay: RelayProcess) -> None:
    async def scenario() -> None:
        async with (
            backbone_at(relay) as backbone,
            worker_at(relay) as one,
            worker_at(relay) as two,
        ):
            first = await pair(relay, backbone, one)
            await two.join()
            second = await two.bridge()
            assert await backbone.bridge() == second
            await backbone.send(second, frame(Kind.DISPATCH, 1, b"rows"))
            await two.receive()
            two.socket.transport.abort()
            edge, farewell = await backbone.receive_frame()
            assert edge == second
            assert isinstance(farewell, Fault)
            assert farewell.request == 0
            assert "worker gone: socket closed (1006" in farewell.message
            await still_serves(backbone, one, first, 1)

    asyncio.run(scenario())


def test_a_planned_stop_says_goodbye_and_lets_answers_through(tmp_path_factory: pytest.TempPathFactory) -> None:
    async def scenario(own: RelayProcess) -> None:
        async with (
            backbone_at(own) as backbone,
            worker_at(own) as worker,
            worker_at(own) as late,
        ):
            edge = await pair(own, backbone, worker)
            await backbone.send(edge, frame(Kind.DISPATCH, 1, b"rows", reply_bytes=8))
            await worker.receive()
            own.interrupt()
            for peer in (backbone, worker):
                number, farewell = await peer.receive_frame()
                assert (number, isinstance(farewell, Goaway)) == (0, True)
            await late.socket.send(b"B")
            await late.end()
            answer = frame(Kind.RESULT, 1, b"outputs!")
            await worker.send(edge, answer)
            assert await backbone.receive() == (edge, answer)
            assert await backbone.end() == (1012, "planned stop")
            assert (await worker.end())[0] == 1012

    with relay_process(tmp_path_factory.mktemp("stop")) as own:
        asyncio.run(scenario(own))
        assert own.process.wait(20) == 0
