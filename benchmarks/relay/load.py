"""Load for a relay: one backbone and some workers that echo, all in the caller's process.

`bench_relay` drives the relay and its reference with the same load. Frames have true headers and random payloads;
nothing is computed.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from websockets.asyncio.client import ClientConnection, connect

from kvasir.experts import ExpertRange
from kvasir.kernels.api import RowFormat
from kvasir.relay.records import MAX_MESSAGE_BYTES, RECORD, RELAY_EDGE, opening_message, record, record_spans
from kvasir.wire.frames import Hello, Role, Welcome
from kvasir.wire.header import HEADER, HEADER_BYTES, MAGIC, VERSION, Kind, WireType

MODEL, KERNEL = "ab" * 32, "cd" * 32


def frame(kind: Kind, request: int, payload: bytes, reply_bytes: int = 0) -> bytes:
    """A frame's bytes with this payload; for a dispatch, one that owes `reply_bytes`. The checksum is not true."""
    d_model = max(reply_bytes // 4, 1)
    n_rows = 1 if kind is Kind.DISPATCH else 0
    head = HEADER.pack(
        MAGIC, VERSION, kind, WireType.F32, 0, request, 0, n_rows, 1, d_model, len(payload), 0
    )  # fmt: skip
    return head + payload


def as_record(edge: int, data: bytes) -> bytes:
    """Bytes of a frame as a record."""
    return RECORD.pack(edge, len(data)) + data


def welcome_on(edge: int) -> bytes:
    """A worker's welcome as a record."""
    return record(edge, Welcome(MODEL, KERNEL, "kx1", RowFormat.KX1, 256, (ExpertRange(0, 0, 1),)))


async def join(url: str, role: Role, token: str) -> ClientConnection:
    """An open socket whose opening has been sent."""
    socket = await connect(url, compression=None, max_size=MAX_MESSAGE_BYTES, ping_interval=None, proxy=None)
    await socket.send(opening_message(Hello(role, MODEL, KERNEL, "kx1", token=token)))
    return socket


async def read_records(socket: ClientConnection) -> list[tuple[int, bytes]]:
    """The records of the next message."""
    message = await socket.recv(decode=False)
    return [(edge, message[start:stop]) for edge, start, stop in record_spans(message)]


def is_welcome(edge: int, data: bytes) -> bool:
    """Return whether a worker is there; the relay's own record before says who it is."""
    return edge != RELAY_EDGE and HEADER.unpack_from(data)[2] == Kind.WELCOME


@dataclass(frozen=True, slots=True)
class Echoed:
    """What a run carried: round trips, seconds, payload bytes one way."""

    n_round_trips: int
    seconds: float
    payload_bytes: int


class Load:
    """A backbone and its echoing workers, connected to the relay at `url`."""

    def __init__(self, url: str, tokens: dict[Role, str], n_workers: int) -> None:
        self._url = url
        self._tokens = tokens
        self._n_workers = n_workers
        self._workers: list[ClientConnection] = []
        self._echoing: list[asyncio.Task[None]] = []
        self.edges: list[int] = []

    async def __aenter__(self) -> Self:
        self._backbone = await join(self._url, Role.BACKBONE, self._tokens[Role.BACKBONE])
        await asyncio.sleep(0.2)  # the reference relay has no answer to wait for
        for _ in range(self._n_workers):
            worker = await join(self._url, Role.WORKER, self._tokens[Role.WORKER])
            self._workers.append(worker)
            self._echoing.append(asyncio.create_task(_echo(worker)))
        while len(self.edges) < self._n_workers:
            self.edges += [edge for edge, data in await read_records(self._backbone) if is_welcome(edge, data)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._echoing:
            task.cancel()
        for socket in (*self._workers, self._backbone):
            socket.transport.abort()

    async def run(self, payload_bytes: int, window: int, seconds: float) -> Echoed:
        """Keep `window` requests under way for some time: bundles of one per worker, the next when all are back."""
        payload, n_done, request = os.urandom(payload_bytes), 0, 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            bundle = []
            for index in range(window):
                request += 1
                data = frame(Kind.DISPATCH, request, payload, reply_bytes=payload_bytes)
                bundle.append(as_record(self.edges[index % len(self.edges)], data))
            for message in _messages(bundle):
                await self._backbone.send(message)
            n_back = 0
            while n_back < window:
                n_back += len(await read_records(self._backbone))
            n_done += window
        return Echoed(n_done, time.perf_counter() - began, payload_bytes)


def _messages(records: list[bytes]) -> list[bytes]:
    small = len(records[0]) * len(records) <= 1024 * 1024
    return [b"".join(records)] if small else records


async def _echo(worker: ClientConnection) -> None:
    while True:
        for edge, data in await read_records(worker):
            if edge == RELAY_EDGE:
                continue
            fields = HEADER.unpack_from(data)
            if fields[2] == Kind.HELLO:
                await worker.send(welcome_on(edge))
            elif fields[2] == Kind.DISPATCH:
                await worker.send(as_record(edge, frame(Kind.RESULT, fields[5], data[HEADER_BYTES:])))
