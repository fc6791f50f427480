"""Access to the market, before a body is parsed: bearer tokens that are known to be good, and rate limits.

Called by `market.api` and `market.node_auth`. Good tokens are cached for REMEMBERED_S by their hash, so a token
that another process revoked stays valid for at most that long; bad tokens are not cached. An address is charged only
for requests that need SQL, so many workers behind one address do not slow each other down.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from django.http import HttpRequest
from django.utils import timezone

from market.errors import MarketError
from market.nodes.tokens import TokenHolder, digest_of
from market.rate_limits import Rate, RateLimits, client_address, network_of

REMEMBERED_S = 30.0
MOST_REMEMBERED = 20_000


class TokenMemory:
    """A bounded cache of holders of good tokens; the oldest are evicted first. Threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._holders: OrderedDict[bytes, tuple[float, TokenHolder]] = OrderedDict()

    def get(self, text: str) -> TokenHolder | None:
        """Return the holder of a cached token that has not expired, else None."""
        with self._lock:
            until, holder = self._holders.get(digest_of(text), (0.0, None))
        if holder is None or self._clock() >= until:
            return None
        return None if holder.expires is not None and holder.expires <= timezone.now() else holder

    def put(self, text: str, holder: TokenHolder) -> None:
        """Cache a token that was just checked."""
        with self._lock:
            self._holders[digest_of(text)] = (self._clock() + REMEMBERED_S, holder)
            self._holders.move_to_end(digest_of(text))
            while len(self._holders) > MOST_REMEMBERED:
                self._holders.popitem(last=False)

    def forget_node(self, node_id: str) -> None:
        """Drop a node whose token was rotated or revoked."""
        with self._lock:
            for digest in [key for key, (_, holder) in self._holders.items() if holder.public_id == node_id]:
                del self._holders[digest]


def bearer(request: HttpRequest) -> str:
    """Return the bearer token of a request, or an empty string."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def address_of(request: HttpRequest, proxy_hops: int) -> str:
    """Return the network whose bucket a request is charged to."""
    forwarded = request.headers.get("X-Forwarded-For", "")
    return network_of(client_address(request.META.get("REMOTE_ADDR", ""), forwarded, proxy_hops))


def charge(limits: RateLimits, bucket: str, rate: Rate, now_ms: int) -> None:
    """Take one request from a bucket. Raises MarketError 429 with the seconds to wait when it is empty."""
    wait_s = limits.take(bucket, rate, now_ms)
    if wait_s > 0:
        whose = bucket.partition(":")[0]
        message = f"this {whose} may send {rate.per_minute} requests a minute; try again in {wait_s:.1f} s"
        raise MarketError(429, "rate_limit_exceeded", message, retry_after_s=wait_s)


def account_bucket(holder: TokenHolder) -> str:
    """Return the bucket of the account that owns a node, or of the node when it has no account."""
    return f"account:{holder.account_id}" if holder.account_id else f"node:{holder.public_id}"
