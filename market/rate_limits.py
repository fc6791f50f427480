"""Token buckets in Redis, shared by all web processes: how often an address, an account or an API key may ask.

The market, the relay's slice server and the REST API take from a bucket before they do anything that costs something.
A bucket expires once it would be full again, so memory is bounded by the number of recent clients. Time is the
caller's clock: two processes whose clocks differ by seconds disagree by the same time.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # settings import this module, and a relay process does not need to load the client for its type
    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

_TAKE = """
local tokens, at = unpack(redis.call('HMGET', KEYS[1], 'tokens', 'at'))
local per_ms, burst, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local available = burst
if tokens then available = math.min(burst, tonumber(tokens) + math.max(0, now - tonumber(at)) * per_ms) end
if available < 1 then return math.ceil((1 - available) / per_ms) end
redis.call('HSET', KEYS[1], 'tokens', string.format('%.6f', available - 1), 'at', ARGV[3])
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / per_ms))
return 0
"""


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_minute` requests in the long run, `burst` of them at once."""

    per_minute: int
    burst: int


class RateLimits:
    """The market's buckets in one Redis, for threads that may block."""

    def __init__(self, client: Redis) -> None:
        self._take = client.register_script(_TAKE)

    def take(self, bucket: str, rate: Rate, now_ms: int) -> float:
        """Take one request from a bucket. Return 0 if there was one, else the seconds until there is one."""
        return _seconds(self._take(keys=[f"market-rate:{bucket}"], args=_arguments(rate, now_ms)))


async def take(client: AsyncRedis, bucket: str, rate: Rate, now_ms: int) -> float:
    """Take one request from a bucket of the REST API. Return what `RateLimits.take` does; raise Redis's errors."""
    script = client.register_script(_TAKE)
    return _seconds(await script(keys=[f"rate:{bucket}"], args=_arguments(rate, now_ms)))


def network_of(address: str) -> str:
    """Return the IPv4 address, or the /64 network of an IPv6 address, since one customer has all of it.

    For a text that is not an address, return "unknown".
    """
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
    """Return the client's address: the peer, or what the outermost of our own proxies put into X-Forwarded-For.

    Each of the `proxy_hops` proxies appends the address that it sees, so what a client wrote there itself stands
    further left and is ignored.
    """
    seen = [part.strip() for part in forwarded.split(",") if part.strip()]
    return seen[-proxy_hops] if 0 < proxy_hops <= len(seen) else remote


def _arguments(rate: Rate, now_ms: int) -> list[str | int]:
    return [repr(rate.per_minute / 60_000), rate.burst, now_ms]


def _seconds(wait_ms: Any) -> float:
    return int(wait_ms) / 1000
