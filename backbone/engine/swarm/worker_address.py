"""Where a worker of a private network listens. `edge_pool` dials it; commands and settings parse it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from kvasir.errors import ConfigError


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """Where a worker listens. Its text form is also the worker's id in this process."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From HOST:PORT, IPv6 hosts in brackets. Raises ConfigError that shows what is wrong."""
        host, separator, port = text.rpartition(":")
        if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError(f"worker address {text!r} is not HOST:PORT with a port from 1 to 65535")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
