"""How often an address or an account may ask: token buckets in Redis, shared by all web processes.

Called by `market.nodes.access` before anything that costs something. A bucket forgets itself once it would be full
again, so memory is bounded by who asked lately.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # settings import this module: a relay process shall not load the client for a type's sake
    from redis import Redis

_TAKE = """
local tokens, at = unpack(redis.call('HMGET', KEYS[1], 'tokens', 'at'))
local per_ms, burst, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local there = burst
if tokens then there = math.min(burst, tonumber(tokens) + math.max(0, now - tonumber(at)) * per_ms) end
if there < 1 then return math.ceil((1 - there) / per_ms) end
redis.call('HSET', KEYS[1], 'tokens', string.format('%.6f', there - 1), 'at', ARGV[3])
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / per_ms) + 1)
return 0
"""


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_minute` requests for ever, `burst` of them at once."""

    per_minute: int
    burst: int


class RateLimits:
    """The buckets of one Redis."""

    def __init__(self, client: Redis) -> None:
        self._take = client.register_script(_TAKE)

    def take(self, bucket: str, rate: Rate, now_ms: int) -> float:
        """Take one request from a bucket: 0 when there was one, else the seconds until there is."""
        return (
            float(self._take(keys=[f"market-rate:{bucket}"], args=[repr(rate.per_minute / 60_000), rate.burst, now_ms]))
            / 1000
        )


def network_of(address: str) -> str:
    """Whose bucket an address is: its own for IPv4, its network of 64 bits, which is one customer's, for IPv6."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


def client_address(remote: str, forwarded: str, proxy_hops: int) -> str:
    """Who asked: the peer, or what the outermost of the operator's own proxies put into X-Forwarded-For."""
    seen = [part.strip() for part in forwarded.split(",") if part.strip()]
    return seen[-proxy_hops] if 0 < proxy_hops <= len(seen) else remote
