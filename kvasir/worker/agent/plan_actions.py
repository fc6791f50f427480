"""What `plan` can tell a worker to do. `agent` does it; nothing here does anything."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.experts import ExpertRange
from kvasir.worker.agent.plan_state import Piece, Ranges


@dataclass(frozen=True, slots=True)
class Leave:
    """Say goodbye, answer what is under way, end."""

    reason: str


@dataclass(frozen=True, slots=True)
class Register:
    """Become a node of the site."""


@dataclass(frozen=True, slots=True)
class Rotate:
    """Take a new token before this one ends."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Have exactly these pieces at the relay."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Beat:
    """Send a heartbeat that states these merged ranges and keeps these promises."""

    ranges: Ranges
    leases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Get a piece, from the cache or from the site."""

    piece: Piece


@dataclass(frozen=True, slots=True)
class Volunteer:
    """Ask for work; `ranges` is what is held or promised already."""

    room_bytes: int
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Look:
    """Read the demand."""


@dataclass(frozen=True, slots=True)
class PlanMove:
    """Choose a moment at random after which this piece may be given up."""

    range: ExpertRange


@dataclass(frozen=True, slots=True)
class Withdraw:
    """State the piece no more, and look whether it is missed; it is served on."""

    range: ExpertRange


@dataclass(frozen=True, slots=True)
class Stay:
    """Keep the piece after all."""

    range: ExpertRange


@dataclass(frozen=True, slots=True)
class Drop:
    """Give the piece up."""

    range: ExpertRange


Action = Leave | Register | Rotate | Serve | Beat | Fetch | Volunteer | Look | PlanMove | Withdraw | Stay | Drop


def must_finish(action: Action) -> bool:
    """Return whether a stop has to wait for this action: interrupted, it would lose the token that the site sends."""
    return isinstance(action, Register | Rotate)
