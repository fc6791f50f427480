"""Settings of `manage.py up`: ports and numbers of processes, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from kvasir.errors import ConfigError
from kvasir_site import variables as v

LOOPBACK = "127.0.0.1"
_EVERYWHERE = {"0.0.0.0", "::", ""}  # noqa: S104 - recognised, not chosen


@dataclass(frozen=True, slots=True)
class UpSettings:
    """Ports of 0 mean any free one."""

    host: str
    port: int
    relay_ports: tuple[int, ...]  # of relay processes beside the web server's own relay; workers join these
    redis_url: str  # "": start a private one
    n_workers: int
    n_backbones: int
    worker_threads: int
    once: bool

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> UpSettings:
        """Read the environment. Raises ConfigError that names variable and value."""
        env = v.read_environment(environ)
        n_workers = env[v.LOCAL_WORKERS]
        settings = cls(
            host=env[v.HOST],
            port=env[v.PORT],
            relay_ports=env[v.RELAY_PORTS],
            redis_url=env[v.REDIS_URL],
            n_workers=n_workers,
            n_backbones=env[v.LOCAL_BACKBONES],
            worker_threads=max(1, (os.cpu_count() or 1) // (n_workers + 1)),
            once=env[v.ONCE],
        )
        ports = [port for port in (settings.port, *settings.relay_ports) if port]
        if len(set(ports)) < len(ports):
            raise ConfigError("KVASIR_PORT and KVASIR_RELAY_PORTS must all be different")
        return settings

    @property
    def reachable_host(self) -> str:
        """Return the host by which processes of this machine reach the servers."""
        host = LOOPBACK if self.host in _EVERYWHERE else self.host
        return f"[{host}]" if ":" in host else host
