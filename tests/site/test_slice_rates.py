"""How often an address may ask for slices: by the market's buckets in a real Redis, and freely without one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from market.rate_limits import Rate
from relay.slices.rates import AWAY_S, AddressRates
from tests.site.market_site import MARKET, market_at
from tests.swarm.redis_fixture import running_redis


def asked_by(address: str, **headers: str) -> dict[str, Any]:
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "client": (address, 4000), "headers": fields}


def test_an_address_asks_only_so_often_and_without_redis_as_it_likes(tmp_path: Path) -> None:
    market = replace(MARKET, address_rate=Rate(per_minute=60, burst=2), proxy_hops=1)
    seconds = [0.0]
    rates = AddressRates(lambda: seconds[0])
    with running_redis(tmp_path) as server, market_at(tmp_path, server.url, market) as site:

        async def wait_s(*scopes: dict[str, Any]) -> list[float]:
            return [await rates.wait_s(scope) for scope in scopes]

        one, other = asked_by("192.0.2.1"), asked_by("192.0.2.2")
        assert asyncio.run(wait_s(one, one, one, other)) == [0.0, 0.0, 1.0, 0.0]
        behind = asked_by("192.0.2.2", x_forwarded_for="6.6.6.6, 192.0.2.1")
        assert asyncio.run(wait_s(behind)) == [1.0]
        site.now.ms += 1000
        assert asyncio.run(wait_s(behind)) == [0.0]
        server.kill()
        assert asyncio.run(wait_s(one, one)) == [0.0, 0.0]
        server.start()
        assert asyncio.run(wait_s(other, other, other)) == [0.0] * 3  # it is not asked yet
        seconds[0] = AWAY_S
        assert asyncio.run(wait_s(other, other, other)) == [0.0, 0.0, 1.0]
