"""Who asks: the address's rate, the key, the key's rate; in this order, before a body is looked at.

Called by ninja for every operation and by the view of /metrics. Good keys are remembered for some seconds by their
hash, so a revoked key counts for so long; wrong ones are never remembered.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.utils import timezone
from ninja.security.http import HttpAuthBase

from backbone.api.errors import ApiError
from backbone.api.keys.store import KeyHolder, KeyRefusedError, KeyScope, check
from backbone.api.settings import ApiSettings
from backbone.api.swarm.world import swarm
from market.nodes.access import address_of
from market.nodes.rate_limits import Rate

REMEMBERED_S = 5.0
MOST_REMEMBERED = 1024
SQL_DEADLINE_S = 10.0


class KeyMemory:
    """Holders of keys that were good a moment ago, by the hash of the key; bounded, the oldest leave first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._holders: OrderedDict[bytes, tuple[float, KeyHolder]] = OrderedDict()

    def get(self, text: str) -> KeyHolder | None:
        """The holder, if it was put in lately and its time has not ended since."""
        until, holder = self._holders.get(self._digest(text), (0.0, None))
        if holder is None or self._clock() >= until:
            return None
        return None if holder.expires is not None and holder.expires <= timezone.now() else holder

    def put(self, text: str, holder: KeyHolder) -> None:
        """Remember a key that was just checked."""
        digest = self._digest(text)
        self._holders[digest] = (self._clock() + REMEMBERED_S, holder)
        self._holders.move_to_end(digest)
        while len(self._holders) > MOST_REMEMBERED:
            self._holders.popitem(last=False)

    def clear(self) -> None:
        """Forget all, for tests."""
        self._holders.clear()

    @staticmethod
    def _digest(text: str) -> bytes:
        return hashlib.sha256(text.encode()).digest()


MEMORY = KeyMemory()


class ApiKeyAuth(HttpAuthBase):
    """`Authorization: Bearer kvk-...`, as OpenAI's clients send it."""

    openapi_scheme = "bearer"
    openapi_description = "An API key (manage.py issue_key)."

    def __init__(self, scope: KeyScope) -> None:
        super().__init__()
        self._scope = scope

    async def __call__(self, request: HttpRequest) -> KeyHolder:
        """Raises ApiError 401, 403, 411, 413 or 429."""
        limits = ApiSettings.from_django()
        check_length(request, limits.body_limit)
        address = asking_address(request, limits)
        await take_or_refuse(address, limits.address_rate, "this address")
        holder = await key_holder(request)
        if self._scope not in holder.scopes:
            has = ", ".join(sorted(holder.scopes))
            raise ApiError(403, "wrong_scope", f"this key is for {has}; {self._scope} is needed")
        if KeyScope.GUEST in holder.scopes:  # another key would not help
            check_guests_welcome(limits)
            await take_or_refuse(f"guests:{address}", limits.guest_rate, "this address's guests")
        else:
            await take_or_refuse(f"key:{holder.public_id}", _own_rate(holder, limits.key_rate), "this key")
        return holder


async def key_holder(request: HttpRequest) -> KeyHolder:
    """Whose key came with the request. Raises ApiError 401, and 503 when SQL does not answer."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    text = text.strip()
    if not text or scheme.lower() != "bearer":
        raise ApiError(401, "invalid_api_key", "no API key was sent: send the header Authorization: Bearer KEY")
    holder = MEMORY.get(text)
    if holder is not None:
        return holder
    try:
        async with asyncio.timeout(SQL_DEADLINE_S):
            holder = await sync_to_async(check)(text)
    except KeyRefusedError as error:
        raise ApiError(401, "invalid_api_key", str(error)) from None
    except TimeoutError:
        raise ApiError(503, "database_slow", "the database did not answer in time", retry_after_s=5) from None
    MEMORY.put(text, holder)
    return holder


def asking_key(request: HttpRequest) -> KeyHolder:
    """Whose key a view's request was let in with."""
    holder = getattr(request, "auth", None)  # where ninja puts what its authentication returned
    if not isinstance(holder, KeyHolder):
        raise TypeError("this view was called without ApiKeyAuth")
    return holder


def check_length(request: HttpRequest, limit: int) -> None:
    """Refuse a body that is larger than `limit` bytes, or that does not say how large it is. Raises ApiError."""
    if request.method not in {"POST", "PUT", "PATCH"}:
        return
    length = request.headers.get("Content-Length", "")
    if not length.isdecimal():
        raise ApiError(411, "length_required", "the request must have a body and its Content-Length")
    if int(length) > limit:
        raise ApiError(413, "request_too_large", f"the body has {length} bytes; at most {limit} are allowed")


def _own_rate(holder: KeyHolder, usual: Rate) -> Rate:
    if holder.per_minute is None:
        return usual
    return Rate(holder.per_minute, min(holder.per_minute, usual.burst))


def asking_address(request: HttpRequest, limits: ApiSettings) -> str:
    """The bucket of the address that a request comes from."""
    return f"address:{address_of(request, limits.proxy_hops)}"


def check_guests_welcome(limits: ApiSettings) -> None:
    """Raise ApiError 403 where guests get no keys."""
    if not limits.playground_open:
        raise ApiError(403, "playground_off", "guests get no keys here: use a key of your own")


async def take_or_refuse(bucket: str, rate: Rate, whose: str, what: str = "requests") -> None:
    """Take one from a bucket. Raises ApiError 429 when it is empty."""
    wait_s = await swarm().take(bucket, rate)
    if wait_s > 0:
        message = f"{whose} may ask for {rate.per_minute} {what} a minute; try again in {wait_s:.1f} s"
        raise ApiError(429, "rate_limit_exceeded", message, retry_after_s=wait_s)
