"""Sockets that do what they must not: each is closed with a reason, and a pair that works beside them goes on."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from django.utils import timezone

from kvasir.relay.records import MAX_MESSAGE_BYTES, MAX_OPENING_BYTES, RECORD_BYTES, opening_message, record
from kvasir.wire.codec import encode, join
from kvasir.wire.frames import Fault, FaultCode, Ping, Pong, RefuseCode, Role
from kvasir.wire.header import MAX_PAYLOAD_BYTES, Kind
from market.models.nodes import NodeToken
from market.nodes.tokens import TokenScope, issue, revoke
from tests.site.database import database_at
from tests.swarm.relay_process import (
    MODEL,
    Peer,
    RelayProcess,
    as_record,
    backbone_at,
    frame,
    pair,
    sandbox,
    still_serves,
    worker_at,
)

OTHER = "ef" * 32


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    with sandbox(tmp_path_factory) as process:
        yield process


def beside_a_pair(relay: RelayProcess, hostile: Callable[[Peer, int], Awaitable[None]]) -> None:
    """Run `hostile(worker, its edge)` beside a pair on the same backbone socket, which must not notice."""

    async def scenario() -> None:
        async with (
            backbone_at(relay) as backbone,
            worker_at(relay) as good,
            worker_at(relay) as bad,
        ):
            edge = await pair(relay, backbone, good)
            await bad.join()
            bad_edge = await bad.bridge()
            assert await backbone.bridge() == bad_edge
            await still_serves(backbone, good, edge, 1)
            await hostile(bad, bad_edge)
            number, farewell = await backbone.receive_frame()
            assert (number, type(farewell).__name__) == (bad_edge, "Fault")
            await still_serves(backbone, good, edge, 2)

    asyncio.run(scenario())


def refused(relay: RelayProcess, role: Role, message: bytes | str) -> tuple[RefuseCode, str]:
    """What the relay answers to a first message."""

    async def scenario() -> tuple[RefuseCode, str]:
        async with Peer(relay, role) as peer:
            await peer.socket.send(message)
            refusal = await peer.refusal()
            return refusal.code, refusal.message

    return asyncio.run(scenario())


def hello_bytes(relay: RelayProcess, role: Role, **changes: str) -> bytes:
    return opening_message(Peer(relay, role).hello(**changes))


def test_first_messages_that_are_no_opening(relay: RelayProcess) -> None:
    hello = hello_bytes(relay, Role.WORKER)
    other_version = bytearray(hello)
    other_version[5] = 77
    ping = join(encode(Ping(1)))
    cases: list[tuple[bytes | str, RefuseCode, str]] = [
        (b"X" + hello[1:], RefuseCode.MALFORMED, "role byte is needed"),
        (b"B" + hello[1:], RefuseCode.MALFORMED, "the hello says WORKER"),
        (b"W", RefuseCode.MALFORMED, "0 bytes are no frame"),
        (hello[:-1], RefuseCode.MALFORMED, "its header says"),
        (hello + b"x", RefuseCode.MALFORMED, "its header says"),
        (b"W" + bytes(range(200)), RefuseCode.MALFORMED, "frame starts with"),
        (b"W" + ping, RefuseCode.MALFORMED, "the first frame is Ping, Hello is needed"),
        (bytes(other_version), RefuseCode.VERSION, "wire version 77 from the other side, this side speaks 2"),
        ("W hello", RefuseCode.MALFORMED, "a text message"),
    ]
    for message, code, reason in cases:
        got, text = refused(relay, Role.WORKER, message)
        assert (got, reason in text) == (code, True), text


def test_tokens_that_do_not_count(relay: RelayProcess) -> None:
    with database_at(relay.database):
        old, gone = issue(TokenScope.WORKER, "old", days=1), issue(TokenScope.WORKER, "gone")
        NodeToken.objects.filter(public_id=old.public_id).update(expires=timezone.now())
        revoke(gone.public_id)
    cases = {
        "": "none was given",
        "password": "not a node token",
        "kvs-0123456789abcdef-" + "A" * 43: "not known here",
        relay.tokens[Role.BACKBONE]: "for scope backbone, worker is needed",
        old.text: "expired at",
        gone.text: "revoked at",
    }
    for token, reason in cases.items():
        code, text = refused(relay, Role.WORKER, hello_bytes(relay, Role.WORKER, token=token))
        assert (code, reason in text) == (RefuseCode.TOKEN, True), text
        assert not token or token not in relay.log.read_text()
    code, _ = refused(relay, Role.BACKBONE, hello_bytes(relay, Role.BACKBONE, token=relay.tokens[Role.WORKER]))
    assert code is RefuseCode.TOKEN


@pytest.mark.parametrize(
    ("part", "code"), [("model_fingerprint", RefuseCode.MODEL), ("kernel_fingerprint", RefuseCode.KERNEL)]
)
def test_a_worker_that_fits_no_backbone_is_told_what_disagrees(
    relay: RelayProcess, part: str, code: RefuseCode
) -> None:
    async def scenario() -> None:
        async with backbone_at(relay) as backbone, worker_at(relay) as worker:
            await backbone.join()
            await worker.socket.send(opening_message(worker.hello(**{part: OTHER})))
            refusal = await worker.refusal()
            assert refusal.code is code
            assert OTHER in refusal.message
            assert getattr(backbone.hello(), part) in refusal.message
            assert worker.hello().token not in refusal.message

    asyncio.run(scenario())


def test_a_worker_waits_for_its_backbone_and_is_told_when_another_one_comes(relay: RelayProcess) -> None:
    async def scenario() -> None:
        async with worker_at(relay) as worker, backbone_at(relay) as backbone:
            await worker.join()
            await backbone.join(model_fingerprint=OTHER)
            refusal = await worker.refusal()
            assert refusal.code is RefuseCode.MODEL
            assert MODEL in refusal.message
            assert OTHER in refusal.message

    asyncio.run(scenario())


def test_sockets_that_are_only_silent_end_too(relay: RelayProcess) -> None:
    """Four that the relay finds by its clock, all at once: the clocks are real, the seconds few."""
    with database_at(relay.database):
        token = issue(TokenScope.BACKBONE, "for now")

    async def silent() -> None:
        async with worker_at(relay) as peer:
            refusal = await peer.refusal()
            assert (refusal.code, refusal.message) == (RefuseCode.DEADLINE, "no hello within 5 s")

    async def trickling() -> None:
        async with worker_at(relay) as peer:
            opening = opening_message(peer.hello())

            async def pieces() -> AsyncIterator[bytes]:
                for byte in opening:
                    yield bytes([byte])
                    await asyncio.sleep(0.2)

            sending = asyncio.create_task(peer.socket.send(pieces()))
            assert (await peer.refusal()).code is RefuseCode.DEADLINE
            sending.cancel()

    async def revoked() -> None:
        async with backbone_at(relay) as peer:
            await peer.join(token=token.text, model_fingerprint=OTHER)
            with sqlite3.connect(relay.database, timeout=20) as database:
                database.execute(
                    "UPDATE market_nodetoken SET revoked = '2026-01-01 00:00' WHERE public_id = ?", [token.public_id]
                )
            refusal = await peer.refusal()
            assert (refusal.code, "revoked at" in refusal.message) == (RefuseCode.TOKEN, True)

    async def half_open() -> None:
        async with backbone_at(relay) as backbone, worker_at(relay) as peer:
            edge = await pair(relay, backbone, peer)
            peer.socket.transport.pause_reading()  # pings reach the machine and nobody answers
            number, farewell = await backbone.receive_frame()
            assert (number, isinstance(farewell, Fault)) == (edge, True)
            assert "no sign of life for" in str(farewell)

    async def scenario() -> None:
        await asyncio.gather(half_open(), silent(), trickling(), revoked())

    asyncio.run(scenario())


def test_a_first_message_may_have_just_the_limit(relay: RelayProcess) -> None:
    code, reason = refused(relay, Role.WORKER, b"W" + bytes(MAX_OPENING_BYTES - 1))
    assert (code, "frame starts with" in reason) == (RefuseCode.MALFORMED, True), reason


def test_a_first_message_that_is_too_long_is_never_taken(relay: RelayProcess) -> None:
    async def scenario() -> None:
        async with worker_at(relay) as worker:
            await worker.socket.send(b"W" + bytes(MAX_OPENING_BYTES))
            code, reason = await worker.end()
            assert code == 1009
            assert str(MAX_OPENING_BYTES) in reason

    asyncio.run(scenario())


def test_a_message_over_the_limit_ends_the_socket(relay: RelayProcess) -> None:
    async def hostile(worker: Peer, edge: int) -> None:
        half = as_record(9999, bytes(MAX_MESSAGE_BYTES // 2 - RECORD_BYTES))  # for an edge that is not there: dropped
        await worker.socket.send(half + half)
        await worker.socket.send(record(0, Ping(7)))
        assert await worker.receive_frame() == (0, Pong(7))
        with_too_much = asyncio.create_task(worker.socket.send(bytes(MAX_MESSAGE_BYTES + 1)))
        code, reason = await worker.end()
        with_too_much.cancel()
        assert (code, bool(reason)) == (1009, True)

    beside_a_pair(relay, hostile)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x01", "within the head of a record"),
        (as_record(1, b"abc")[:-1], "message ends at byte 10"),
        ((1).to_bytes(4, "little") + (MAX_PAYLOAD_BYTES + 37).to_bytes(4, "little"), "at most 8388644 may travel"),
        (as_record(9999, b"") + b"\x00", "within the head of a record"),
        (as_record(0, b"garbage"), "7 bytes are no frame"),
        (as_record(0, frame(Kind.RESULT, 1, b"")), "Result|needs a payload|RESULT"),
        ("text", "a text message"),
    ],
    ids=["head", "truncated", "oversize", "trailing", "garbage", "to the relay", "text"],
)
def test_messages_that_are_no_records_end_the_socket(relay: RelayProcess, message: bytes | str, reason: str) -> None:
    async def hostile(worker: Peer, edge: int) -> None:
        await worker.socket.send(message)
        await worker.fault()
        refusal = await worker.refusal()
        assert refusal.code is RefuseCode.MALFORMED
        assert any(part in refusal.message for part in reason.split("|")), refusal.message

    beside_a_pair(relay, hostile)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(Kind.RESULT, 5, b"lie!"), "answered request 5, which it does not owe"),
        (frame(Kind.FAULT, 5, b""), "answered request 5, which it does not owe"),
        (frame(Kind.DISPATCH, 5, b""), "sent DISPATCH, which is not its turn"),
        (frame(Kind.WELCOME, 0, b""), "sent WELCOME, which is not its turn"),
        (b"garbage", "frame of 7 bytes"),
        (bytes(36), "frame starts with"),
        (frame(Kind.RESULT, 5, b"lie!")[:-1], "says 4 payload bytes, it has 3"),
    ],
    ids=["unasked", "unasked fault", "dispatch", "second welcome", "garbage", "zeros", "truncated"],
)
def test_frames_that_are_not_the_workers_turn_end_edge_and_socket(
    relay: RelayProcess, data: bytes, reason: str
) -> None:
    async def hostile(worker: Peer, edge: int) -> None:
        await worker.send(edge, data)
        fault = await worker.fault()
        assert (fault.request, fault.code) == (0, FaultCode.PROTOCOL)
        assert reason in fault.message
        code, said = await worker.end()
        assert (code, reason in said) == (1008, True)

    beside_a_pair(relay, hostile)


def test_an_answer_to_another_workers_request_is_not_taken(relay: RelayProcess) -> None:
    async def scenario() -> None:
        async with (
            backbone_at(relay) as backbone,
            worker_at(relay) as good,
            worker_at(relay) as thief,
        ):
            edge = await pair(relay, backbone, good)
            await thief.join()
            thief_edge = await thief.bridge()
            assert await backbone.bridge() == thief_edge
            asked = frame(Kind.DISPATCH, 9, b"rows", reply_bytes=8)
            await backbone.send(edge, asked)
            await good.receive()
            await thief.send(edge, frame(Kind.RESULT, 9, b"stolen!!"))  # an edge that is not its own: dropped
            await thief.send(thief_edge, frame(Kind.RESULT, 9, b"stolen!!"))  # a number that it does not owe
            assert "does not owe" in (await thief.fault()).message
            number, farewell = await backbone.receive_frame()
            assert (number, type(farewell).__name__) == (thief_edge, "Fault")
            answer = frame(Kind.RESULT, 9, b"outputs!")
            await good.send(edge, answer)
            assert await backbone.receive() == (edge, answer)

    asyncio.run(scenario())


def test_a_backbone_that_breaks_one_edge_keeps_the_others(relay: RelayProcess) -> None:
    async def scenario() -> None:
        async with (
            backbone_at(relay) as backbone,
            worker_at(relay) as one,
            worker_at(relay) as two,
        ):
            first = await pair(relay, backbone, one)
            await two.join()
            second = await two.bridge()
            await backbone.bridge()
            await backbone.send(second, frame(Kind.RESULT, 1, b""))
            for peer in (backbone, two):
                assert "does not carry to a worker" in (await peer.fault()).message
            await still_serves(backbone, one, first, 1)

    asyncio.run(scenario())


def test_the_relay_answers_pings_of_its_own(relay: RelayProcess) -> None:
    async def scenario() -> None:
        async with worker_at(relay) as worker:
            await worker.join()
            await worker.socket.send(record(0, Ping(123)))
            assert await worker.receive_frame() == (0, Pong(123))

    asyncio.run(scenario())
