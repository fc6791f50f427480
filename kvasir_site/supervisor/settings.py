"""What `manage.py up` is told by the environment: ports, how many processes, what the sample is. Parsed loudly."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from kvasir.errors import ConfigError
from kvasir_site.env import env_bool, env_int, env_list

LOOPBACK = "127.0.0.1"
_EVERYWHERE = {"0.0.0.0", "::", ""}  # noqa: S104 - recognised, not chosen
MOST_PROCESSES = 64


@dataclass(frozen=True, slots=True)
class UpSettings:
    """Ports of 0 mean any free one."""

    host: str
    port: int
    relay_ports: tuple[int, ...]  # of relay processes beside the web server's own relay; workers join these
    redis_port: int
    redis_url: str  # "": start a private one
    n_workers: int
    n_backbones: int
    worker_threads: int
    once: bool

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> UpSettings:
        """Raises ConfigError that names variable and value."""
        n_workers = env_int("KVASIR_LOCAL_WORKERS", 2, 0, MOST_PROCESSES, environ)
        fair_threads = max(1, (os.cpu_count() or 1) // (n_workers + 1))
        settings = cls(
            host=environ.get("KVASIR_HOST", LOOPBACK),
            port=env_int("KVASIR_PORT", 8000, 0, 65_535, environ),
            relay_ports=tuple(_port(text) for text in env_list("KVASIR_RELAY_PORTS", [], environ)),
            redis_port=env_int("KVASIR_REDIS_PORT", 0, 0, 65_535, environ),
            redis_url=environ.get("REDIS_URL", ""),
            n_workers=n_workers,
            n_backbones=env_int("KVASIR_LOCAL_BACKBONES", 1, 1, MOST_PROCESSES, environ),
            worker_threads=env_int("KVASIR_WORKER_THREADS", fair_threads, 1, 1024, environ),
            once=env_bool("KVASIR_ONCE", False, environ),
        )
        ports = [port for port in (settings.port, *settings.relay_ports, settings.redis_port) if port]
        if len(set(ports)) < len(ports):
            raise ConfigError("KVASIR_PORT, KVASIR_RELAY_PORTS and KVASIR_REDIS_PORT must all be different")
        return settings

    @property
    def reachable_host(self) -> str:
        """Where processes of this machine reach the servers."""
        host = LOOPBACK if self.host in _EVERYWHERE else self.host
        return f"[{host}]" if ":" in host else host


def _port(text: str) -> int:
    return env_int("KVASIR_RELAY_PORTS", 0, 1, 65_535, {"KVASIR_RELAY_PORTS": text})
