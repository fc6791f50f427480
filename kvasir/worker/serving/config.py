"""What a worker that serves needs to know: from a command line, or from an agent that fetched a slice."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kvasir.kernels.backend import CPU, Backend

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a connection may take for what, in seconds."""

    hello_s: float = 5.0  # from connecting to a complete hello
    frame_s: float = 60.0  # from a frame's first byte to its last
    idle_s: float = 60.0  # without a byte; backbones ping every few seconds
    write_s: float = 30.0  # answers wait and the other side reads nothing
    stop_s: float = 10.0  # from SIGTERM until what is in flight is answered


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Everything that `kvasir-worker serve` or `join` needs to know."""

    slice_path: Path
    host: str = "127.0.0.1"
    port: int = 7070
    n_threads: int | None = None  # None: as many as the kernel finds good
    kernel: str = "auto"
    max_clients: int = 8
    max_inflight_mb: int = 64
    json: bool = False
    relay_url: str = ""  # to join instead of listening
    token: str = field(default="", repr=False)
    backend: Backend = CPU
    deadlines: Deadlines = field(default_factory=Deadlines)

    @property
    def max_inflight_bytes(self) -> int:
        """Bytes of requests and answers that one backbone may have under way."""
        return self.max_inflight_mb * MIB
