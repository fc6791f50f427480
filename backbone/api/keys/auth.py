"""Authentication and rate limits, before a body is read, and keys for the playground's guests.

ninja calls `ApiKeyAuth` for every operation, the view of /metrics too: it takes from the address's bucket, checks the
key, takes from the key's bucket. Valid keys are cached by their hash for REMEMBERED_S, which is how long a revoked key
may still work; invalid ones are never cached. Anyone gets a guest's key, which expires soon and shares one bucket with
all guests of its address. KVASIR_PLAYGROUND=off refuses guests and the keys that they have.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.utils import timezone
from ninja.security.http import HttpAuthBase

from backbone.api.chat.requests import Asked
from backbone.api.errors import ApiError
from backbone.api.keys.store import KeyHolder, KeyRefusedError, KeyScope, check, issue_guest
from backbone.api.message_store import message_store
from backbone.api.settings import ApiSettings
from market.nodes.access import address_of
from market.rate_limits import Rate

REMEMBERED_S = 5.0
MOST_REMEMBERED = 1024
SQL_DEADLINE_S = 10.0
GUEST_KEY_MINUTES = 60
GUEST_KEYS_OF_ADDRESS = Rate(per_minute=2, burst=10)
GUEST_KEYS_OF_ALL = Rate(per_minute=120, burst=240)
T = TypeVar("T")


class KeyMemory:
    """A bounded cache of the holders of valid keys, by the hash of the key; the oldest leave first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._holders: OrderedDict[bytes, tuple[float, KeyHolder]] = OrderedDict()

    def get(self, text: str) -> KeyHolder | None:
        """Return the holder if it was put in within REMEMBERED_S and its key has not expired."""
        until, holder = self._holders.get(self._digest(text), (0.0, None))
        if holder is None or self._clock() >= until:
            return None
        return None if holder.expires is not None and holder.expires <= timezone.now() else holder

    def put(self, text: str, holder: KeyHolder) -> None:
        """Cache a key that was just checked."""
        digest = self._digest(text)
        self._holders[digest] = (self._clock() + REMEMBERED_S, holder)
        self._holders.move_to_end(digest)
        while len(self._holders) > MOST_REMEMBERED:
            self._holders.popitem(last=False)

    def clear(self) -> None:
        """Forget all keys, for tests."""
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
        """Return the key's holder. Raises ApiError 401, 403, 411, 413 or 429."""
        limits = ApiSettings.from_django()
        check_length(request, limits.body_limit)
        address = _address_bucket(request, limits)
        await take_or_refuse(address, limits.address_rate, "this address")
        holder = await key_holder(request)
        if self._scope not in holder.scopes:
            has = ", ".join(sorted(holder.scopes))
            raise ApiError(403, "wrong_scope", f"this key has the scope {has}; {self._scope} is needed")
        if KeyScope.GUEST in holder.scopes:  # one bucket for all of them: another guest's key would not help
            check_guests_allowed(limits)
            await take_or_refuse(f"guests:{address}", limits.guest_rate, "this address's guests")
        else:
            await take_or_refuse(f"key:{holder.public_id}", _own_rate(holder, limits.key_rate), "this key")
        return holder


async def key_holder(request: HttpRequest) -> KeyHolder:
    """Return the holder of the request's key. Raises ApiError 401, and 503 if SQL does not answer."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    text = text.strip()
    if not text or scheme.lower() != "bearer":
        raise ApiError(401, "invalid_api_key", "the API key is missing: send the header Authorization: Bearer KEY")
    holder = MEMORY.get(text)
    if holder is not None:
        return holder
    try:
        holder = await ask_sql(check, text)
    except KeyRefusedError as error:
        raise ApiError(401, "invalid_api_key", str(error)) from None
    MEMORY.put(text, holder)
    return holder


async def ask_sql(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that blocks on SQL from a thread. Raises ApiError 503 after SQL_DEADLINE_S."""
    try:
        async with asyncio.timeout(SQL_DEADLINE_S):
            return await sync_to_async(function)(*arguments)
    except TimeoutError:
        raise ApiError(503, "database_slow", "the database did not answer in time", retry_after_s=5) from None


def asking_key(request: HttpRequest) -> KeyHolder:
    """Return the holder that `ApiKeyAuth` found for a view's request."""
    holder = getattr(request, "auth", None)  # where ninja puts what its authentication returned
    if not isinstance(holder, KeyHolder):
        raise TypeError("this view was called without ApiKeyAuth")
    return holder


def check_length(request: HttpRequest, limit: int) -> None:
    """Refuse a body of more than `limit` bytes, or without Content-Length. Raises ApiError 411 or 413."""
    if request.method not in {"POST", "PUT", "PATCH"}:
        return
    length = request.headers.get("Content-Length", "")
    if not length.isdecimal():
        raise ApiError(411, "length_required", "the request must have a body and its Content-Length")
    if int(length) > limit:
        raise ApiError(413, "request_too_large", f"the body has {length} bytes; at most {limit} are allowed")


async def take_or_refuse(bucket: str, rate: Rate, whose: str, what: str = "requests") -> None:
    """Take one from a bucket. Raises ApiError 429 if it is empty."""
    wait_s = await message_store().take(bucket, rate)
    if wait_s > 0:
        message = f"{whose} may ask for {rate.per_minute} {what} a minute; try again in {wait_s:.1f} s"
        raise ApiError(429, "rate_limit_exceeded", message, retry_after_s=wait_s)


async def guest_key(request: HttpRequest) -> dict[str, Any]:
    """Issue a key to a guest. Raises ApiError 403 if guests are refused, 429 after too many keys."""
    limits = ApiSettings.from_django()
    check_length(request, limits.body_limit)
    check_guests_allowed(limits)
    bucket = f"guest-keys:{_address_bucket(request, limits)}"
    await take_or_refuse(bucket, GUEST_KEYS_OF_ADDRESS, "this address", "keys")
    await take_or_refuse("guest-keys:all", GUEST_KEYS_OF_ALL, "all guests together", "keys")
    key, expires = await ask_sql(issue_guest, GUEST_KEY_MINUTES)
    return {"object": "playground.key", "key": key.text, "expires": int(expires.timestamp())}


def check_guests_allowed(limits: ApiSettings) -> None:
    """Raise ApiError 403 if the playground is off."""
    if not limits.playground_open:
        raise ApiError(403, "playground_off", "this site issues no keys to guests: use your own key")


def check_guest(holder: KeyHolder, asked: Asked) -> None:
    """Limit a guest to one answer to one prompt, without strict. Raises ApiError 403."""
    if KeyScope.GUEST not in holder.scopes:
        return
    if len(asked.requests) > 1 or asked.n > 1:
        raise ApiError(403, "guest_limit", "a guest's key allows one answer to one prompt; use your own key for more")
    if asked.requests[0].strict:
        raise ApiError(403, "guest_limit", "a guest's key does not allow strict; use your own key", param="strict")


def _own_rate(holder: KeyHolder, usual: Rate) -> Rate:
    if holder.per_minute is None:
        return usual
    return Rate(holder.per_minute, min(holder.per_minute, usual.burst))


def _address_bucket(request: HttpRequest, limits: ApiSettings) -> str:
    return f"address:{address_of(request, limits.proxy_hops)}"
