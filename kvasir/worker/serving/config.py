"""The configuration of a worker that serves: from a command line, or from an agent that has fetched slices."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kvasir.kernels.backend import CPU, Backend

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Limits in seconds for the phases of a connection."""

    hello_s: float = 5.0  # from connecting to a complete hello
    frame_s: float = 60.0  # from a frame's first byte to its last
    idle_s: float = 60.0  # without a byte; backbones ping every few seconds
    write_s: float = 30.0  # answers wait and the other side reads nothing
    stop_s: float = 10.0  # from SIGTERM until what is in flight is answered


class KernelChoice(NamedTuple):
    """How experts are computed; the arguments that `holdings.join_holdings` takes after the paths."""

    name: str = "auto"
    n_threads: int | None = None  # None: one per usable core
    backend: Backend = CPU


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """How many backbones a worker serves, and what each of them may use."""

    max_clients: int = 8
    max_inflight_mb: int = 64
    deadlines: Deadlines = field(default_factory=Deadlines)

    @property
    def max_inflight_bytes(self) -> int:
        """Bytes of requests and answers that one backbone may have under way."""
        return self.max_inflight_mb * MIB


@dataclass(frozen=True, slots=True)
class RelayAccess:
    """A relay's address and the token of this node."""

    url: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The options of `kvasir-worker serve` and of `kvasir-worker join --slice`."""

    slice_path: Path
    host: str = "127.0.0.1"
    port: int = 7070
    relay: RelayAccess | None = None  # to join instead of listening
    kernel: KernelChoice = field(default_factory=KernelChoice)
    limits: ClientLimits = field(default_factory=ClientLimits)
    json: bool = False
