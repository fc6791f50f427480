"""The relay's small parts: outbox, receive queue, directory, usage book and the address check."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kvasir.errors import ConfigError
from kvasir.relay.directory import FixedDirectory, RedisDirectory, checked_url
from kvasir.wire.header import Buffer
from relay.server.daphne import check_address
from relay.server.websocket_server import RECEIVE_HIGH_BYTES, RECEIVE_LOW_BYTES, ReceiveQueue
from relay.service import warn_without_unmasking
from relay.sockets.bridge import Traffic
from relay.sockets.outbox import HIGH_WATER_BYTES, Outbox
from relay.sockets.usage import MAX_WAITING, Usage, UsageBook

ROOT = Path(__file__).parents[2]


def test_what_gathers_while_a_message_leaves_goes_out_as_one() -> None:
    async def scenario() -> None:
        sent, gate = list[Buffer](), asyncio.Event()

        async def send(data: Buffer) -> None:
            sent.append(data)
            await gate.wait()

        outbox = Outbox(send, lambda: 0.0, max_bundle_bytes=10)
        running = asyncio.create_task(outbox.run())
        for record in (b"first", b"aaaa", b"bbbb", b"cccc", b"a large record", b"d"):
            outbox.put(record)
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sent == [b"first"]
        gate.set()
        await outbox.flush()
        assert sent == [b"first", b"aaaabbbb", b"cccc", b"a large record", b"d"]
        assert outbox.queued_bytes == 0
        running.cancel()

    asyncio.run(scenario())


def test_room_comes_when_enough_has_left_or_the_socket_is_gone() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def send(data: Buffer) -> None:
            await gate.wait()

        outbox = Outbox(send, lambda: 0.0)
        await outbox.room()
        running = asyncio.create_task(outbox.run())
        for _ in range(3):
            outbox.put(bytes(HIGH_WATER_BYTES // 2))
        waiting = [asyncio.create_task(outbox.room()) for _ in range(2)]
        await asyncio.sleep(0)
        assert outbox.is_full
        assert not any(task.done() for task in waiting)
        gate.set()
        await asyncio.gather(*waiting)
        gate.clear()
        for _ in range(3):
            outbox.put(bytes(HIGH_WATER_BYTES))
        waiting = [asyncio.create_task(outbox.room())]
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(*waiting)

    asyncio.run(scenario())


@dataclass
class Transport:
    """Notes whether it was told to stop reading."""

    connected: bool = True
    disconnecting: bool = False
    calls: list[str] = field(default_factory=list)

    def pauseProducing(self) -> None:
        self.calls.append("pause")

    def resumeProducing(self) -> None:
        self.calls.append("resume")


@dataclass
class HasTransport:
    transport: Any


def test_reading_stops_over_the_high_water_mark_and_goes_on_below_the_low_one() -> None:
    transport = Transport()
    queue = ReceiveQueue(HasTransport(transport))
    piece = bytes(RECEIVE_HIGH_BYTES // 4)
    for _ in range(6):
        queue.put_nowait({"type": "websocket.receive", "bytes": piece})
    assert (transport.calls, queue.is_paused) == (["pause"], True)
    while queue.n_bytes > RECEIVE_LOW_BYTES:
        assert queue.is_paused
        queue.get_nowait()
    assert (transport.calls, queue.is_paused) == (["pause", "resume"], False)


def test_a_socket_that_is_closing_is_not_read_again_and_says_why_it_closed() -> None:
    transport = Transport()
    queue = ReceiveQueue(HasTransport(transport))
    queue.put_nowait({"type": "websocket.receive", "bytes": bytes(RECEIVE_HIGH_BYTES + 1)})
    transport.disconnecting = True
    queue.closed_because = "no sign of life"
    queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
    queue.get_nowait()
    assert transport.calls == ["pause"]
    assert queue.get_nowait()["reason"] == "no sign of life"


class FakeRedis:
    """The few commands, with a clock that only the test moves."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._values: dict[str, tuple[str, int]] = {}
        self._sets: dict[str, set[str]] = {}

    async def set(self, name: str, value: str, *, px: int) -> None:
        self._values[name] = value, self.now_ms + px

    async def mget(self, keys: list[str]) -> list[bytes | str | None]:
        found = [self._values.get(key) for key in keys]
        return [item[0].encode() if item is not None and item[1] > self.now_ms else None for item in found]

    async def delete(self, *names: str) -> None:
        for name in names:
            self._values.pop(name, None)

    async def sadd(self, name: str, *values: str) -> None:
        self._sets.setdefault(name, set()).update(values)

    async def srem(self, name: str, *values: str) -> None:
        self._sets.get(name, set()).difference_update(values)

    async def smembers(self, name: str) -> Collection[bytes | str]:
        return {value.encode() for value in self._sets.get(name, set())}


def test_relays_are_listed_until_they_expire_or_leave() -> None:
    async def scenario() -> None:
        redis = FakeRedis()
        directory = RedisDirectory(redis, expiry_s=15)
        assert await directory.listed() == {}
        await directory.announce("a", "wss://a.example/relay")
        redis.now_ms = 10_000
        await directory.announce("b", "wss://b.example/relay")
        await directory.announce("c", "wss://c.example/relay")
        assert set(await directory.listed()) == {"a", "b", "c"}
        redis.now_ms = 15_001
        assert await directory.listed() == {"b": "wss://b.example/relay", "c": "wss://c.example/relay"}
        assert await redis.smembers("relays") == {b"b", b"c"}
        await directory.withdraw("b")
        assert set(await directory.listed()) == {"c"}

    asyncio.run(scenario())


def test_one_relay_needs_no_redis() -> None:
    async def scenario() -> None:
        directory = FixedDirectory({"only": "ws://127.0.0.1:8000/relay"})
        await directory.announce("other", "ws://127.0.0.1:8001/relay")
        await directory.withdraw("only")
        assert await directory.listed() == {"other": "ws://127.0.0.1:8001/relay"}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "url",
    [
        "http://a/relay",
        "relay.example.org",
        "ws://",
        "wss://user:secret@a/relay",
        "wss://a/relay?token=x",
        "wss://a/#t",
    ],
)
def test_addresses_that_cannot_be_or_hold_secrets_are_refused(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        checked_url(url)
    assert "secret" not in str(refused.value)


def test_usage_waits_for_the_database_within_bounds() -> None:
    book = UsageBook()
    usage = Usage("r", 1, "b", "w", datetime.now(UTC), 1.0, Traffic(), "gone")
    for _ in range(MAX_WAITING + 5):
        book.add(usage)
    taken = book.take()
    assert len(taken) == MAX_WAITING
    assert book.take() == []
    book.add(usage)
    book.put_back(taken)
    assert len(book.take()) == MAX_WAITING


def test_a_taken_port_is_one_clear_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            check_address("127.0.0.1", port)
    check_address("127.0.0.1", 0)
    with pytest.raises(ConfigError, match="port 70000 does not exist"):
        check_address("127.0.0.1", 70_000)


def test_a_process_that_is_only_a_relay_loads_nothing_of_pages_and_engine() -> None:
    code = (
        "import sys; import relay.management.commands.serve; import django; django.setup(); import relay.asgi; "
        "print([name for name in ('torch', 'celery', 'redis', 'ninja', 'pydantic', 'jinja2') if name in sys.modules])"
    )
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "kvasir_site.settings"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_missing_c_code_is_warned_about_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("autobahn.websocket.USES_NVX", True)
    monkeypatch.setattr("relay.service.HAS_FAST_UNMASKING", True)
    warn_without_unmasking()
    assert caplog.messages == []
    monkeypatch.setattr("autobahn.websocket.USES_NVX", False)
    monkeypatch.setattr("relay.service.HAS_FAST_UNMASKING", False)
    warn_without_unmasking()
    autobahn, websockets = caplog.messages
    assert "autobahn runs without its C code" in autobahn
    assert "websockets runs without its C code" in websockets
