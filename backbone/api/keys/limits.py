"""How often a key or an address may ask: token buckets in Redis, shared by all web processes.

Called before every request that costs something. A bucket forgets itself once it would be full again, so memory is
bounded by who asked lately. Time is the caller's clock: processes whose clocks differ by seconds differ by as much.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from redis.asyncio import Redis

_TAKE = """
local tokens, at = unpack(redis.call('HMGET', KEYS[1], 'tokens', 'at'))
local per_ms, burst, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
tokens = tonumber(tokens or burst)
if at then tokens = math.min(burst, tokens + math.max(0, now - tonumber(at)) * per_ms) end
local wait = 0
if tokens >= 1 then tokens = tokens - 1 else wait = math.ceil((1 - tokens) / per_ms) end
redis.call('HSET', KEYS[1], 'tokens', tostring(tokens), 'at', ARGV[3])
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / per_ms))
return wait
"""


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_minute` requests for ever, `burst` of them at once."""

    per_minute: int
    burst: int


async def take(client: Redis, bucket: str, rate: Rate, now_s: float) -> float:
    """Take one request from a bucket. 0 when there was one, else the seconds until there is. Redis's errors rise."""
    script = client.register_script(_TAKE)
    arguments = [repr(rate.per_minute / 60_000), str(rate.burst), str(int(now_s * 1000))]
    wait_ms = await script(keys=[f"rate:{bucket}"], args=arguments)
    return int(wait_ms) / 1000


def address_bucket(address: str) -> str:
    """The bucket of an address: an IPv4 address, or the network of 64 bits that one IPv6 customer has."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "address:unknown"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return f"address:{parsed.ipv4_mapped}"
        return f"address:{ipaddress.ip_network((parsed, 64), strict=False).network_address}/64"
    return f"address:{parsed}"


def client_address(remote: str, forwarded: str, proxy_hops: int) -> str:
    """Who asked: the peer itself, or what the outermost of our own proxies put into X-Forwarded-For.

    Each of the `proxy_hops` proxies appends the address that it saw, so whatever a client wrote there itself stands
    further left and is not believed.
    """
    if proxy_hops == 0:
        return remote
    seen = [part.strip() for part in forwarded.split(",") if part.strip()]
    return seen[-proxy_hops] if len(seen) >= proxy_hops else remote
