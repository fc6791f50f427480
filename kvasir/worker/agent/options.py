"""What an agent is told, and what it works with: options of the command line, and everything outside of it.

`__main__` makes both; tests make their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kvasir.worker.agent.edge import AgentEdge
from kvasir.worker.agent.fetch import Fetcher
from kvasir.worker.agent.market_client import MarketClient
from kvasir.worker.agent.report import Report
from kvasir.worker.agent.state import StateDirectory
from kvasir.worker.serving.holdings import Holdings, join_holdings


@dataclass(frozen=True, slots=True)
class Pace:
    """How slowly a worker moves. Seconds."""

    look_s: float = 60.0  # between two looks at the demand
    move_least_s: float = 60.0  # from the first sight of too many replicas
    move_most_s: float = 300.0


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What the command line says."""

    site: str
    room_bytes: int
    invite: str = ""
    name: str = "kvasir-worker"
    relay_url: str = ""  # instead of the one that the site names
    kernel: str = "auto"
    n_threads: int | None = None
    facts: tuple[tuple[str, str], ...] = ()  # of this machine, for the site
    pace: Pace = Pace()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything outside. Tests bring their own."""

    market: MarketClient
    fetcher: Fetcher
    directory: StateDirectory
    report: Report
    make_edge: Callable[[Callable[[bool, str], None]], AgentEdge]
    clock: Callable[[], float]
    jitter: Callable[[], float]
    wall_clock: Callable[[], float] = time.time
    open_slices: Callable[..., Holdings] = join_holdings
