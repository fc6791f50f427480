"""Megabytes pushed through a relay at a side that reads slowly or not at all; for the relay's peak memory.

`bench_relay` runs all three: requests that the relay must refuse, requests and then answers that it must hold back.
"""

from __future__ import annotations

import asyncio

from websockets.asyncio.client import ClientConnection

from benchmarks.relay.load import as_record, frame, join, read_records, welcome_on
from kvasir.relay.records import RELAY_EDGE
from kvasir.wire.frames import Role
from kvasir.wire.header import HEADER, Kind

PAYLOAD_BYTES = 1_000_000
WINDOW = 12  # of 1 MB each way, within an edge's credit
READ_EVERY_S = 0.01


async def push_at_slow_readers(url: str, tokens: dict[Role, str], n_frames: int) -> None:
    """Push `n_frames` of 1 MB three times: at a worker that reads nothing, at a slow worker, at a slow backbone."""
    await _requests_that_are_not_read(url, tokens, n_frames)
    await _slow_worker(url, tokens, n_frames)
    await _slow_backbone(url, tokens, n_frames)


async def _pair(url: str, tokens: dict[Role, str]) -> tuple[ClientConnection, ClientConnection, int]:
    backbone = await join(url, Role.BACKBONE, tokens[Role.BACKBONE])
    worker = await join(url, Role.WORKER, tokens[Role.WORKER])
    edge = RELAY_EDGE
    while edge == RELAY_EDGE:
        edge = (await read_records(worker))[-1][0]
    await worker.send(welcome_on(edge))
    while edge not in [number for number, _ in await read_records(backbone)]:
        pass
    return backbone, worker, edge


def _abort(*sockets: ClientConnection) -> None:
    for socket in sockets:
        socket.transport.abort()


async def _requests_that_are_not_read(url: str, tokens: dict[Role, str], n_frames: int) -> None:
    backbone, worker, edge = await _pair(url, tokens)
    worker.transport.pause_reading()
    payload = bytes(PAYLOAD_BYTES)
    for request in range(1, n_frames + 1):
        await backbone.send(as_record(edge, frame(Kind.DISPATCH, request, payload)))
    _abort(backbone, worker)


async def _slow_worker(url: str, tokens: dict[Role, str], n_frames: int) -> None:
    backbone, worker, edge = await _pair(url, tokens)
    answering = asyncio.create_task(_answer_slowly(worker, edge))
    payload = bytes(PAYLOAD_BYTES)
    n_sent = n_done = 0
    while n_done < n_frames:
        while n_sent < n_frames and n_sent - n_done < WINDOW:
            n_sent += 1
            await backbone.send(as_record(edge, frame(Kind.DISPATCH, n_sent, payload)))
        n_done += len(await read_records(backbone))
    answering.cancel()
    _abort(backbone, worker)


async def _answer_slowly(worker: ClientConnection, edge: int) -> None:
    while True:
        await asyncio.sleep(READ_EVERY_S)
        for _, data in await read_records(worker):
            await worker.send(as_record(edge, frame(Kind.RESULT, HEADER.unpack_from(data)[5], b"done")))


async def _slow_backbone(url: str, tokens: dict[Role, str], n_frames: int) -> None:
    backbone, worker, edge = await _pair(url, tokens)
    answering = asyncio.create_task(_answer_at_once(worker, edge))
    n_sent = n_done = 0
    while n_done < n_frames:
        while n_sent < n_frames and n_sent - n_done < WINDOW:
            n_sent += 1
            await backbone.send(as_record(edge, frame(Kind.DISPATCH, n_sent, b"rows", reply_bytes=PAYLOAD_BYTES)))
        await asyncio.sleep(READ_EVERY_S)
        n_done += len(await read_records(backbone))
    answering.cancel()
    _abort(backbone, worker)


async def _answer_at_once(worker: ClientConnection, edge: int) -> None:
    payload = bytes(PAYLOAD_BYTES)
    while True:
        for _, data in await read_records(worker):
            await worker.send(as_record(edge, frame(Kind.RESULT, HEADER.unpack_from(data)[5], payload)))
