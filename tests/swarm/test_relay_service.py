"""What a relay process does besides frames: the directory, usage in SQL, and a port that is taken."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from redis.asyncio import Redis

from kvasir.relay.directory import RedisDirectory
from kvasir.wire.frames import Fault, Role
from kvasir.wire.header import Kind
from tests.swarm.redis_fixture import RedisServer
from tests.swarm.relay_process import (
    PATIENCE_S,
    ROOT,
    RelayProcess,
    as_record,
    backbone_at,
    frame,
    pair,
    relay_process,
    worker_at,
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def listed(redis_url: str, wanted: set[str]) -> dict[str, str]:
    """The directory once it lists these relays and no others."""
    client = Redis.from_url(redis_url)
    directory = RedisDirectory(client)
    async with client, asyncio.timeout(PATIENCE_S):
        while set(found := dict(await directory.listed())) != wanted:
            await asyncio.sleep(0.02)
    return found


def test_several_relays_are_found_in_the_directory_and_serve_side_by_side(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path)
    redis.start()
    with ExitStack() as stack:
        stack.callback(redis.kill)
        relays = dict[str, RelayProcess]()
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            port = free_port()
            url = f"ws://127.0.0.1:{port}/relay"
            environment = {"REDIS_URL": redis.url, "KVASIR_RELAY_URL": url, "KVASIR_RELAY_ID": name}
            relays[name] = stack.enter_context(relay_process(tmp_path / name, port, **environment))

        async def round_trip(relay: RelayProcess) -> None:
            async with backbone_at(relay) as backbone, worker_at(relay) as worker:
                edge = await pair(relay, backbone, worker)
                await backbone.send(edge, frame(Kind.DISPATCH, 1, b"rows"))
                assert (await worker.receive())[0] == edge

        async def scenario() -> None:
            found = await listed(redis.url, {"one", "two"})
            assert found == {name: relay.url for name, relay in relays.items()}
            await asyncio.gather(*(round_trip(relay) for relay in relays.values()))
            relays["one"].interrupt()
            await listed(redis.url, {"two"})
            redis.kill()  # a directory that is away disturbs no socket
            await round_trip(relays["two"])

        asyncio.run(scenario())


def test_usage_reaches_the_database_once_per_edge(tmp_path: Path) -> None:
    async def scenario(relay: RelayProcess) -> None:
        async with backbone_at(relay) as backbone, worker_at(relay) as worker:
            edge = await pair(relay, backbone, worker)
            asked, answer = frame(Kind.DISPATCH, 1, b"rows", reply_bytes=8), frame(Kind.RESULT, 1, b"outputs!")
            await backbone.send(edge, asked)
            await worker.receive()
            await worker.socket.send(as_record(edge, answer))
            await backbone.receive()
            await worker.socket.close(1000, "enough")
            fault = await backbone.fault()
            assert isinstance(fault, Fault)
            assert fault.message == "worker gone: socket closed (1000: enough)"

    with relay_process(tmp_path) as relay:
        asyncio.run(scenario(relay))
        relay.interrupt()
        assert relay.process.wait(PATIENCE_S) == 0
    with sqlite3.connect(relay.database) as database:
        query = "SELECT backbone_token, worker_token, frames_to_worker, bytes_to_worker, frames_to_backbone, mood"
        rows = database.execute(f"{query} FROM relay_edgeusage").fetchall()
    ids = [relay.tokens[role].split("-")[1] for role in (Role.BACKBONE, Role.WORKER)]
    assert rows == [(*ids, 1, 40, 2, "worker gone: socket closed (1000: enough)")]


def test_a_port_that_is_taken_is_one_sentence_and_exit_code_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "manage.py", "serve", "--relay-only", "--port", str(port)],
            cwd=ROOT, env={**os.environ, "DATABASE_URL": f"sqlite:///{tmp_path / 'db.sqlite3'}"},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another port" in done.stderr
    assert "Traceback" not in done.stderr
