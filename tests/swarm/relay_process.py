"""A relay in a process of its own, as `manage.py serve` starts it, and bare sockets to it that may misbehave."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from kvasir.experts import ExpertRange
from kvasir.kernels.api import RowFormat
from kvasir.relay.records import MAX_MESSAGE_BYTES, RECORD, RELAY_EDGE, opening_message, record, record_spans
from kvasir.wire.codec import decode
from kvasir.wire.frames import Fault, Frame, Hello, Refuse, Role, Welcome
from kvasir.wire.header import HEADER, MAGIC, VERSION, Kind, WireType
from market.nodes.tokens import TokenScope, issue
from tests.site.database import database_at

ROOT = Path(__file__).parents[2]
MODEL, KERNEL = "ab" * 32, "cd" * 32
PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class RelayProcess:
    """A relay that runs, its address, its database and a token of each scope."""

    url: str
    process: subprocess.Popen[str]
    database: Path
    tokens: dict[Role, str]
    log: Path

    def interrupt(self) -> None:
        """Ask it to stop, as an operator does."""
        self.process.send_signal(signal.SIGTERM)


@contextmanager
def relay_process(directory: Path, port: int = 0, **environment: str) -> Iterator[RelayProcess]:
    """Start one (port 0: on a free port) with a database of its own; stop it at the end."""
    database, log = directory / "relay.sqlite3", directory / "relay.log"
    with database_at(database) as url:
        tokens = {
            Role.WORKER: issue(TokenScope.WORKER, "a worker").text,
            Role.BACKBONE: issue(TokenScope.BACKBONE, "a backbone").text,
        }
    with log.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "serve", "--port", str(port)],
            cwd=ROOT, env={**os.environ, "DATABASE_URL": url, **environment},
            stdout=subprocess.PIPE, stderr=sink, text=True, start_new_session=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        said = re.search(r"ws://\S+", process.stdout.readline())
        assert said is not None, log.read_text()
        yield RelayProcess(said[0], process, database, tokens, log)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def frame(kind: Kind, request: int, payload: bytes, *, reply_bytes: int = 4) -> bytes:
    """A frame with any payload; a dispatch owes `reply_bytes`. Only header fields that the relay reads are true."""
    n_rows = 1 if kind is Kind.DISPATCH else 0
    head = MAGIC, VERSION, kind, WireType.F32, 0, request, 0, n_rows, 1, -(-reply_bytes // 4), len(payload), 0
    return HEADER.pack(*head) + payload


def as_record(edge: int, data: bytes) -> bytes:
    return RECORD.pack(edge, len(data)) + data


class Peer:
    """One bare socket. Records come one by one, however they were bundled."""

    def __init__(self, relay: RelayProcess, role: Role) -> None:
        self._relay = relay
        self.role = role
        self.edge = -1  # the last edge that opened
        self._records: list[tuple[int, bytes]] = []
        self._socket: ClientConnection | None = None

    @property
    def socket(self) -> ClientConnection:
        assert self._socket is not None
        return self._socket

    async def __aenter__(self) -> Self:
        self._socket = await connect(
            self._relay.url, compression=None, max_size=MAX_MESSAGE_BYTES, ping_interval=None, proxy=None
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.transport.abort()

    def hello(self, **changes: str) -> Hello:
        facts = {"model_fingerprint": MODEL, "kernel_fingerprint": KERNEL, "kernel": "kx1"}
        facts |= {"token": self._relay.tokens[self.role], **changes}
        return Hello(self.role, **facts)  # type: ignore[arg-type]

    async def join(self, **changes: str) -> Welcome:
        """Send the opening; returns the relay's welcome."""
        await self.socket.send(opening_message(self.hello(**changes)))
        edge, answer = await self.receive_frame()
        assert edge == RELAY_EDGE
        assert isinstance(answer, Welcome), answer
        return answer

    async def send(self, edge: int, data: bytes) -> None:
        await self.socket.send(as_record(edge, data))

    async def receive(self) -> tuple[int, bytes]:
        """The next record: its edge, and its frame's bytes."""
        while not self._records:
            message = await asyncio.wait_for(self.socket.recv(decode=False), PATIENCE_S)
            self._records += [(edge, message[start:stop]) for edge, start, stop in record_spans(message)]
        return self._records.pop(0)

    async def receive_frame(self) -> tuple[int, Frame]:
        edge, data = await self.receive()
        return edge, decode(data)

    async def bridge(self) -> int:
        """As a worker, welcome the next backbone; as a backbone, take the next worker. Returns the edge."""
        self.edge, first = await self.receive_frame()
        if self.role is Role.WORKER:
            assert isinstance(first, Hello)
            welcome = Welcome(MODEL, KERNEL, "kx1", RowFormat.KX1, 256, (ExpertRange(0, 0, 4),))
            await self.socket.send(record(self.edge, welcome))
        else:
            assert isinstance(first, Hello) and (first.role, first.token) == (Role.WORKER, "")
            edge, second = await self.receive_frame()
            assert edge == self.edge and isinstance(second, Welcome)
        return self.edge

    async def refusal(self) -> Refuse:
        """The refusal that must come next, after which the socket closes."""
        edge, answer = await self.receive_frame()
        assert (edge, type(answer)) == (RELAY_EDGE, Refuse)
        assert isinstance(answer, Refuse)
        code, reason = await self.end()
        assert (code, bool(reason)) == (1008, True)
        return answer

    async def fault(self) -> Fault:
        """The fault that must come next on an edge."""
        _, answer = await self.receive_frame()
        assert isinstance(answer, Fault), answer
        return answer

    async def end(self) -> tuple[int, str]:
        """Code and reason with which the socket closes, whatever still comes before."""
        try:
            while True:
                await asyncio.wait_for(self.socket.recv(decode=False), PATIENCE_S)
        except ConnectionClosed as error:
            return (error.rcvd.code, error.rcvd.reason) if error.rcvd else (1006, "")


def backbone_at(relay: RelayProcess) -> Peer:
    return Peer(relay, Role.BACKBONE)


def worker_at(relay: RelayProcess) -> Peer:
    return Peer(relay, Role.WORKER)


@contextmanager
def sandbox(factory: object) -> Iterator[RelayProcess]:
    """A relay under a directory that pytest's factory makes."""
    directory = factory.mktemp("relay")  # type: ignore[attr-defined]
    with relay_process(directory) as relay:
        yield relay


async def pair(relay: RelayProcess, backbone: Peer, worker: Peer) -> int:
    """Join both and bridge them; returns the edge."""
    await backbone.join()
    await worker.join()
    edge = await worker.bridge()
    assert await backbone.bridge() == edge
    return edge


async def still_serves(backbone: Peer, worker: Peer, edge: int, request: int) -> None:
    """A round trip over an edge that must not have been disturbed."""
    asked = frame(Kind.DISPATCH, request, b"rows", reply_bytes=8)
    await backbone.send(edge, asked)
    assert await worker.receive() == (edge, asked)
    answer = frame(Kind.RESULT, request, b"outputs!")
    await worker.send(edge, answer)
    assert await backbone.receive() == (edge, answer)
