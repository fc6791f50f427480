"""The market's settings as the operator gave them, parsed loudly where the environment is read.

`kvasir_site` makes one of these into `settings.KVASIR_MARKET`; all of `market` reads it from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from django.conf import settings

from market.coverage.targets import TargetBounds
from market.nodes.rate_limits import Rate


class Registration(StrEnum):
    """Who may register a node."""

    OPEN = "open"
    INVITE = "invite"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class MarketSettings:
    """Defaults are those of a fresh installation. Leases in seconds."""

    registration: Registration = Registration.OPEN
    targets: TargetBounds = field(default_factory=lambda: TargetBounds(2, 8))
    lease_s: float = 45.0  # of a heartbeat: three of those that are sent every 15 s
    volunteer_lease_s: float = 60.0  # of a promise, and what is added at the slowest download that is waited for
    node_days: int = 30
    nodes_per_account: int = 1000
    register_rate: Rate = field(default_factory=lambda: Rate(per_minute=10, burst=50))  # of an address
    address_rate: Rate = field(default_factory=lambda: Rate(per_minute=6000, burst=6000))
    account_rate: Rate = field(default_factory=lambda: Rate(per_minute=3000, burst=3000))
    proxy_hops: int = 0
    rate_microcredits: int = 1000  # of one row through one expert that is not scarce

    @classmethod
    def from_django(cls) -> MarketSettings:
        """The site's settings."""
        market: MarketSettings = settings.KVASIR_MARKET
        return market
