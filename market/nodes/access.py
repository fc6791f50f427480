"""Who may ask the market: an address's rate, a node's token, an account's rate; before a body is looked at.

Called by `market.api`. Good tokens are remembered for REMEMBERED_S by their hash, so a token that another process took
back counts for so long; wrong ones are never remembered. An address is charged only for what costs a look into SQL, so
many workers behind one address do not hinder each other.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from django.http import HttpRequest
from django.utils import timezone

from market.errors import MarketError
from market.nodes.rate_limits import Rate, RateLimits, client_address, network_of
from market.nodes.tokens import TokenHolder

REMEMBERED_S = 30.0
MOST_REMEMBERED = 20_000


class TokenMemory:
    """Holders of tokens that were good a moment ago; bounded, the oldest leave first. Safe to share by threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._holders: OrderedDict[bytes, tuple[float, TokenHolder]] = OrderedDict()

    def get(self, text: str) -> TokenHolder | None:
        """The holder, if it was put in lately and its token has not expired since."""
        with self._lock:
            until, holder = self._holders.get(_digest(text), (0.0, None))
        if holder is None or self._clock() >= until:
            return None
        return None if holder.expires is not None and holder.expires <= timezone.now() else holder

    def put(self, text: str, holder: TokenHolder) -> None:
        """Remember a token that was just checked."""
        with self._lock:
            self._holders[_digest(text)] = (self._clock() + REMEMBERED_S, holder)
            self._holders.move_to_end(_digest(text))
            while len(self._holders) > MOST_REMEMBERED:
                self._holders.popitem(last=False)

    def forget_node(self, node_id: str) -> None:
        """Its tokens were rotated or taken back."""
        with self._lock:
            for digest in [key for key, (_, holder) in self._holders.items() if holder.public_id == node_id]:
                del self._holders[digest]


def bearer(request: HttpRequest) -> str:
    """The token that came with a request; empty when none did."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def address_of(request: HttpRequest, proxy_hops: int) -> str:
    """Whose address bucket a request is charged to."""
    forwarded = request.headers.get("X-Forwarded-For", "")
    return network_of(client_address(request.META.get("REMOTE_ADDR", ""), forwarded, proxy_hops))


def charge(limits: RateLimits, bucket: str, rate: Rate, now_ms: int) -> None:
    """Take one request from a bucket. Raises MarketError 429 with the seconds until there is one."""
    wait_s = limits.take(bucket, rate, now_ms)
    if wait_s > 0:
        whose = bucket.partition(":")[0]
        message = f"this {whose} may send {rate.per_minute} requests a minute; try again in {wait_s:.1f} s"
        raise MarketError(429, "rate_limit_exceeded", message, retry_after_s=wait_s)


def account_bucket(holder: TokenHolder) -> str:
    """The bucket of the account that owns a node; a node without one has its own."""
    return f"account:{holder.account_id}" if holder.account_id else f"node:{holder.public_id}"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
