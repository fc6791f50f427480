"""What a worker knows: the one value that `plan` decides from and `plan_changes` goes on from.

Moments are seconds of one clock that never goes back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvasir.experts import ExpertRange
from kvasir.worker.agent.demand import Demand

Ranges = tuple[ExpertRange, ...]


@dataclass(frozen=True, slots=True)
class SiteModel:
    """The model that the worker holds experts of."""

    name: str
    fingerprint: str
    n_layer: int
    n_expert: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A range that was promised as one, and is fetched, served and dropped as one. `lease_id`: until it is served."""

    range: ExpertRange
    n_bytes: int
    kernel: str = ""
    lease_id: str = ""
    is_fetched: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A piece that others hold often enough: given up after `at_s`, if that is still so."""

    range: ExpertRange
    at_s: float
    is_withdrawn: bool = False  # heartbeats do not state it any more, though it is still served


@dataclass(frozen=True, slots=True)
class NotBefore:
    """The moments before which something is not tried (again)."""

    site_s: float = 0.0  # anything that asks the site: it is away, or wants to be left alone
    heartbeat_s: float = 0.0
    volunteer_s: float = 0.0
    fetch_s: float = 0.0
    serve_s: float = 0.0
    look_s: float = 0.0
    rotate_s: float = math.inf


@dataclass(frozen=True, slots=True)
class WorkerState:
    """All that a decision depends on."""

    room_bytes: int  # for experts, all together
    node_id: str = ""
    model: SiteModel | None = None
    pieces: tuple[Piece, ...] = ()
    is_fetching: bool = False
    served: Ranges = ()  # pieces that are at the relay, ascending
    is_joined: bool = False
    lost_s: float = -math.inf  # when the relay was lost last
    serve_by_s: float = math.inf  # the first piece that waits for others waits until then
    stated: Ranges = ()  # by the last heartbeat that was accepted
    is_crowded: bool = False  # the market has work, but there is no room for it
    demand: Demand | None = None  # none that is older than what was stated last
    demand_s: float = -math.inf
    move: Move | None = None
    stop_reason: str = ""
    times: NotBefore = field(default_factory=NotBefore)

    @property
    def fetched(self) -> Ranges:
        """Pieces that are on the disk and verified, ascending."""
        return tuple(sorted(piece.range for piece in self.pieces if piece.is_fetched))

    @property
    def promises(self) -> tuple[Piece, ...]:
        """Pieces that are still to be fetched."""
        return tuple(piece for piece in self.pieces if not piece.is_fetched)
