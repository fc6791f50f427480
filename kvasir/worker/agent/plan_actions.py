"""The actions that `plan` chooses from, as plain data. `agent` performs them."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.experts import ExpertRange
from kvasir.worker.agent.plan_state import Piece, Ranges


@dataclass(frozen=True, slots=True)
class Leave:
    """Announce the end, answer the requests in flight, and end."""

    reason: str


@dataclass(frozen=True, slots=True)
class Register:
    """Register as a node of the site."""


@dataclass(frozen=True, slots=True)
class Rotate:
    """Exchange the token before it expires."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Serve exactly these pieces at the relay."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Beat:
    """Send a heartbeat that states these merged ranges and renews these leases."""

    ranges: Ranges
    leases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Get a piece from the cache or from the site."""

    piece: Piece


@dataclass(frozen=True, slots=True)
class Volunteer:
    """Ask for work; `ranges` is held or leased already."""

    room_bytes: int
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Look:
    """Read the demand."""


@dataclass(frozen=True, slots=True)
class PlanMove:
    """Choose a random moment after which this piece may be given up."""

    range: ExpertRange


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Stop stating the piece, but still serve it, to see whether the demand needs it."""

    range: ExpertRange


@dataclass(frozen=True, slots=True)
class Stay:
    """Keep the piece and end the move."""

    range: ExpertRange


@dataclass(frozen=True, slots=True)
class Drop:
    """Give the piece up."""

    range: ExpertRange


Action = Leave | Register | Rotate | Serve | Beat | Fetch | Volunteer | Look | PlanMove | Withdraw | Stay | Drop


def must_finish(action: Action) -> bool:
    """Return whether a stop has to wait for this action: interrupted, it would lose the token that the site sends."""
    return isinstance(action, Register | Rotate)
