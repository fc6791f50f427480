"""The directory of relay processes: their addresses by id, with an expiry.

Relays announce themselves, and backbones connect to all that are listed. With one relay process the directory is a
constant; with several it is kept in Redis, whose client the caller injects. It has neither tokens nor workers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from kvasir.errors import ConfigError

EXPIRY_S = 15.0
REFRESH_EVERY_S = 5.0
INDEX_KEY = "relays"
_ENTRY_KEY = "relay:{}"


class AsyncRedis(Protocol):
    """The commands of `redis.asyncio.Redis` that are used."""

    def set(self, name: str, value: str, *, px: int) -> Awaitable[object]: ...
    def mget(self, keys: list[str]) -> Awaitable[Sequence[bytes | str | None]]: ...
    def delete(self, *names: str) -> Awaitable[object]: ...
    def sadd(self, name: str, *values: str) -> Awaitable[object]: ...
    def srem(self, name: str, *values: str) -> Awaitable[object]: ...
    def smembers(self, name: str) -> Awaitable[Collection[bytes | str]]: ...


class RelayDirectory(Protocol):
    """The interface that relays and backbones use."""

    async def announce(self, relay_id: str, url: str) -> None:
        """List an address for the next `EXPIRY_S` seconds."""
        ...

    async def withdraw(self, relay_id: str) -> None:
        """Remove an address at once."""
        ...

    async def listed(self) -> Mapping[str, str]:
        """Return all addresses that have not expired, by relay id."""
        ...


class FixedDirectory:
    """A directory within one process."""

    def __init__(self, urls: Mapping[str, str] | None = None) -> None:
        self._urls = {relay_id: checked_url(url) for relay_id, url in (urls or {}).items()}

    async def announce(self, relay_id: str, url: str) -> None:
        """Add an address; it does not expire."""
        self._urls[relay_id] = url

    async def withdraw(self, relay_id: str) -> None:
        """Remove an address."""
        self._urls.pop(relay_id, None)

    async def listed(self) -> Mapping[str, str]:
        """Return all addresses by relay id."""
        return dict(self._urls)


class RedisDirectory:
    """One key `relay:<id>` with an expiry for each relay, and a set of the ids. Raises the client's errors."""

    def __init__(self, client: AsyncRedis, expiry_s: float = EXPIRY_S) -> None:
        self._client = client
        self._expiry_ms = int(expiry_s * 1000)

    async def announce(self, relay_id: str, url: str) -> None:
        """List an address until the expiry."""
        await self._client.set(_ENTRY_KEY.format(relay_id), url, px=self._expiry_ms)
        await self._client.sadd(INDEX_KEY, relay_id)

    async def withdraw(self, relay_id: str) -> None:
        """Remove an address."""
        await self._client.delete(_ENTRY_KEY.format(relay_id))
        await self._client.srem(INDEX_KEY, relay_id)

    async def listed(self) -> Mapping[str, str]:
        """Return all addresses by relay id, and remove ids whose key has expired."""
        ids = sorted(_text(member) for member in await self._client.smembers(INDEX_KEY))
        if not ids:
            return {}
        urls = await self._client.mget([_ENTRY_KEY.format(relay_id) for relay_id in ids])
        found = {relay_id: _text(url) for relay_id, url in zip(ids, urls, strict=True) if url is not None}
        gone = [relay_id for relay_id in ids if relay_id not in found]
        if gone:
            await self._client.srem(INDEX_KEY, *gone)
        return found


def checked_url(url: str) -> str:
    """Return the address. Raises ConfigError unless it is ws:// or wss:// with a host and without secrets."""
    parts = urlsplit(url)
    if parts.scheme not in {"ws", "wss"} or not parts.hostname:
        raise ConfigError(f"relay address {url!r} is not a WebSocket URL such as wss://relay.example.org/relay")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError("a relay address holds no user, password, query or fragment: tokens travel in the hello")
    return url


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
