"""A worker's state: the value that `plan` decides from and `plan_changes` transforms.

Moments are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvasir.experts import ExpertRange
from kvasir.worker.agent.demand import Demand

Ranges = tuple[ExpertRange, ...]


@dataclass(frozen=True, slots=True)
class SiteModel:
    """The model whose experts the worker holds."""

    name: str
    fingerprint: str
    n_layer: int
    n_expert: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A range that is leased, fetched, served and dropped as a whole. `lease_id`: until it is served."""

    range: ExpertRange
    n_bytes: int
    kernel: str = ""
    lease_id: str = ""
    is_fetched: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A piece that enough others hold: given up after `at_s` if that is still the case."""

    range: ExpertRange
    at_s: float
    is_withdrawn: bool = False  # heartbeats no longer state it, though it is still served


@dataclass(frozen=True, slots=True)
class NotBefore:
    """The moments before which an action is not tried (again)."""

    site_s: float = 0.0  # every call to the site: it is away, or asked for a pause
    heartbeat_s: float = 0.0
    volunteer_s: float = 0.0
    fetch_s: float = 0.0
    serve_s: float = 0.0
    look_s: float = 0.0
    rotate_s: float = math.inf


@dataclass(frozen=True, slots=True)
class WorkerState:
    """Everything that a decision depends on."""

    room_bytes: int  # bytes for all experts together
    node_id: str = ""
    model: SiteModel | None = None
    pieces: tuple[Piece, ...] = ()
    is_fetching: bool = False
    served: Ranges = ()  # pieces that are at the relay, ascending
    is_joined: bool = False
    lost_s: float = -math.inf  # when the relay was last lost
    serve_by_s: float = math.inf  # when fetched pieces stop waiting for others
    stated: Ranges = ()  # by the last accepted heartbeat
    is_crowded: bool = False  # the market has work that does not fit
    demand: Demand | None = None  # never older than `stated`
    demand_s: float = -math.inf
    move: Move | None = None
    stop_reason: str = ""
    times: NotBefore = field(default_factory=NotBefore)

    @property
    def fetched(self) -> Ranges:
        """Return the pieces that are on the disk and verified, ascending."""
        return tuple(sorted(piece.range for piece in self.pieces if piece.is_fetched))

    @property
    def unfetched(self) -> tuple[Piece, ...]:
        """Return the pieces that are still to be fetched."""
        return tuple(piece for piece in self.pieces if not piece.is_fetched)
