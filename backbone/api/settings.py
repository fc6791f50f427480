"""The API's limits, read from Django's settings, which validate every value."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from market.rate_limits import Rate


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The rates are those of a key, of an address, and of an address's guests.

    `proxy_hops` is the number of the operator's own proxies in front of the server.
    """

    body_limit: int
    deadline_s: float
    queue_wait_s: float
    key_rate: Rate
    address_rate: Rate
    proxy_hops: int
    metrics_open: bool
    playground_open: bool
    guest_rate: Rate

    @classmethod
    def from_django(cls) -> ApiSettings:
        """Return the site's settings."""
        return cls(
            body_limit=settings.KVASIR_BODY_LIMIT,
            deadline_s=settings.KVASIR_REQUEST_DEADLINE_S,
            queue_wait_s=settings.KVASIR_QUEUE_WAIT_S,
            key_rate=Rate(settings.KVASIR_KEY_RATE, settings.KVASIR_KEY_BURST),
            address_rate=Rate(settings.KVASIR_ADDRESS_RATE, settings.KVASIR_ADDRESS_BURST),
            proxy_hops=settings.KVASIR_PROXY_HOPS,
            metrics_open=settings.KVASIR_METRICS_OPEN,
            playground_open=settings.KVASIR_PLAYGROUND == "open",
            guest_rate=Rate(settings.KVASIR_PLAYGROUND_RATE, settings.KVASIR_PLAYGROUND_RATE),
        )
