"""The market's settings. `kvasir_site` parses them from the environment into `settings.KVASIR_MARKET`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from django.conf import settings

from kvasir.errors import ConfigError
from market.rate_limits import Rate


class Registration(StrEnum):
    """Who may register a node."""

    OPEN = "open"
    INVITE = "invite"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class TargetBounds:
    """Every expert gets at least `fewest` replicas, a busy one up to `most`."""

    fewest: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most <= 1000:
            raise ConfigError(
                f"replica targets from {self.fewest} to {self.most}: 1 <= fewest <= most <= 1000 is needed"
            )


@dataclass(frozen=True, slots=True)
class MarketSettings:
    """The defaults are those of a new installation."""

    registration: Registration = Registration.OPEN
    targets: TargetBounds = field(default_factory=lambda: TargetBounds(2, 8))
    lease_s: float = 45.0  # of a heartbeat, sent every 15 s: two may be lost
    volunteer_lease_s: float = 60.0  # of a range, plus the time of its download at the slowest speed
    node_days: int = 30
    nodes_per_account: int = 1000
    register_rate: Rate = field(default_factory=lambda: Rate(per_minute=10, burst=50))  # of an address
    address_rate: Rate = field(default_factory=lambda: Rate(per_minute=6000, burst=6000))
    account_rate: Rate = field(default_factory=lambda: Rate(per_minute=3000, burst=3000))
    proxy_hops: int = 0
    rate_microcredits: int = 1000  # of one row through one expert that is not scarce

    @classmethod
    def from_django(cls) -> MarketSettings:
        """Return the site's settings."""
        found: MarketSettings = settings.KVASIR_MARKET
        return found
