"""The rate limit of the slice server for an address, by the market's token buckets, before a token is checked.

`slices.site` gives it to the server. Without Redis there is no limit, so that slices are served all the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from redis.exceptions import RedisError

from market.errors import MarketError
from market.rate_limits import client_address, network_of
from market.service import service
from relay.slices.server import Message

ANSWER_S = 1.0
AWAY_S = 10.0  # after a failure of Redis, how long it is not asked


class AddressRates:
    """One instance for a process, used on its event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._away_until = 0.0

    async def wait_s(self, scope: Message) -> float:
        """Take one request from its address's bucket. Return 0 if there was one, else the seconds until there is."""
        if self._clock() < self._away_until:
            return 0.0
        market = service()
        peer = (scope.get("client") or ("",))[0]
        forwarded = ", ".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for")
        bucket = f"address:slices:{network_of(client_address(peer, forwarded, market.settings.proxy_hops))}"
        rate = market.settings.address_rate
        try:
            async with asyncio.timeout(ANSWER_S):
                return await market.call(lambda: market.limits.take(bucket, rate, market.clock()))
        except (RedisError, MarketError, TimeoutError):
            self._away_until = self._clock() + AWAY_S
            return 0.0
