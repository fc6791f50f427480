"""The configuration of `kvasir-worker join URL --budget SIZE`. `worker.command_line` makes it, `start` uses it."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from pathlib import Path

from kvasir.slicing.budget import WORKER_OVERHEAD_BYTES
from kvasir.worker.serving.config import KernelChoice


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """How this worker presents itself to the site."""

    name: str = "kvasir-worker"
    region: str = ""  # public when it is set
    invite: str = field(default="", repr=False)
    token: str = field(default="", repr=False)  # of a node that an operator made; "": register


@dataclass(frozen=True, slots=True)
class Pace:
    """How slowly a worker gives up ranges that others hold too. Seconds."""

    look_s: float = 60.0  # between two reads of the demand
    move_least_s: float = 60.0  # from the first sight of too many replicas
    move_most_s: float = 300.0


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The options of the command line, checked."""

    site: str
    budget_bytes: int
    state_dir: Path
    identity: NodeIdentity = field(default_factory=NodeIdentity)
    relay_url: str = ""  # instead of the one that the site names
    kernel: KernelChoice = field(default_factory=KernelChoice)
    json: bool = False
    pace: Pace = field(default_factory=Pace)

    @property
    def room_bytes(self) -> int:
        """What the budget leaves for experts."""
        return self.budget_bytes - WORKER_OVERHEAD_BYTES

    @property
    def facts(self) -> dict[str, str]:
        """Facts about this machine that heartbeats carry."""
        kind = "cpu" if self.kernel.backend.kind == "cpu" else "gpu"
        facts = {"os": platform.system(), "device_kind": kind, "backend": "native"}
        return facts | ({"region": self.identity.region} if self.identity.region else {})
