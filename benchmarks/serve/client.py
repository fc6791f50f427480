"""Many streaming requests at once, with as little of the client's own time as possible. `bench_serve` uses it.

Plain asyncio over HTTP/1.1: a full client costs more CPU a token than the server does, on the same machine.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DEADLINE_S = 300.0
_MARK = b'"choices":[{'


@dataclass(frozen=True, slots=True)
class Stream:
    """When one request was sent, and when each of its pieces of text came, in seconds of one clock."""

    sent: float
    came: tuple[float, ...]
    n_tokens: int

    @property
    def first_s(self) -> float:
        """Time to the first token."""
        return self.came[0] - self.sent

    @property
    def gaps_s(self) -> list[float]:
        """Times between tokens."""
        return [after - before for before, after in zip(self.came, self.came[1:], strict=False)]


def run_load(host: str, port: int, key: str, bodies: Sequence[Mapping[str, Any]]) -> list[Stream]:
    """Send all at once and read all to their ends. Raises RuntimeError for anything but complete streams."""

    async def all_at_once() -> list[Stream]:
        async with asyncio.timeout(DEADLINE_S):
            return await asyncio.gather(*(_stream(host, port, key, body) for body in bodies))

    return asyncio.run(all_at_once())


async def _stream(host: str, port: int, key: str, body: Mapping[str, Any]) -> Stream:
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, port)
    try:
        sent = time.perf_counter()
        writer.write(head.encode() + data)
        return await _read(reader, sent)
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader, sent: float) -> Stream:
    came: list[float] = []
    usage = b""
    answer = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in answer.partition(b"\r\n")[0]:
        raise RuntimeError(f"{answer.decode()}{(await reader.read(2000)).decode()}")
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        if _MARK in line:
            came.append(time.perf_counter())
        else:
            usage = line[6:]
    chunk = json.loads(usage or b"{}")
    if "usage" not in chunk:
        raise RuntimeError(f"the stream did not end with its usage: {chunk}")
    return Stream(sent, tuple(came), chunk["usage"]["completion_tokens"])
