"""Everything that the API reads and writes in Redis, as one interface that tests replace by a fake.

Views call `message_store()`: the queue of requests, their events, records and traces, the directory of models and
backbones, the token buckets.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from redis.asyncio import Redis

from backbone.stream import client as stream
from backbone.stream import directory
from backbone.stream.client import StreamEntry, StreamSettings
from backbone.stream.directory import ModelEntry
from backbone.stream.keys import QUEUE
from backbone.stream.payloads import GenerationRequest
from backbone.stream.request_record import RequestRecord, read_record
from backbone.stream.request_trace import RequestTrace, read_trace
from backbone.stream.silence import alive_backbones
from market.rate_limits import Rate, take

MODELS_KEPT_S = 1.0


class MessageStore(Protocol):
    """The interface. Methods raise RedisLost or Redis's own errors if Redis cannot be reached."""

    async def enqueue(self, request: GenerationRequest) -> int: ...

    def read(self, request_id: str) -> AsyncGenerator[StreamEntry, None]: ...

    async def cancel(self, request_id: str) -> bool: ...

    async def record(self, request_id: str) -> RequestRecord | None: ...

    async def trace(self, request_id: str) -> RequestTrace | None: ...

    async def models(self) -> Sequence[ModelEntry]: ...

    async def backbones(self) -> Sequence[str]: ...

    async def stats(self) -> Mapping[str, Mapping[str, float]]: ...

    async def queue_length(self) -> int: ...

    async def take(self, bucket: str, rate: Rate) -> float: ...


class RedisMessageStore:
    """The site's Redis. Models are cached for MODELS_KEPT_S, so that most requests need no look into the directory."""

    def __init__(self) -> None:
        self._models: list[ModelEntry] = []
        self._models_until = 0.0

    async def enqueue(self, request: GenerationRequest) -> int:
        return await stream.enqueue(request)

    def read(self, request_id: str) -> AsyncGenerator[StreamEntry, None]:
        return stream.read(request_id)

    async def cancel(self, request_id: str) -> bool:
        return await stream.cancel(request_id)

    async def record(self, request_id: str) -> RequestRecord | None:
        return await read_record(_client(), request_id)

    async def trace(self, request_id: str) -> RequestTrace | None:
        return await read_trace(_client(), request_id)

    async def models(self) -> Sequence[ModelEntry]:
        now = time.monotonic()
        if now >= self._models_until:
            self._models = await directory.models(_client())
            self._models_until = now + MODELS_KEPT_S if self._models else 0.0
        return self._models

    async def backbones(self) -> Sequence[str]:
        return await alive_backbones(_client())

    async def stats(self) -> Mapping[str, Mapping[str, float]]:
        return await directory.backbone_stats(_client())

    async def queue_length(self) -> int:
        return int(await _client().llen(QUEUE))

    async def take(self, bucket: str, rate: Rate) -> float:
        return await take(_client(), bucket, rate, int(time.time() * 1000))


_current: list[MessageStore] = [RedisMessageStore()]


def message_store() -> MessageStore:
    """Return the store in use."""
    return _current[-1]


@contextmanager
def using(other: MessageStore) -> Iterator[None]:
    """Use another store inside the context, for tests."""
    _current.append(other)
    try:
        yield
    finally:
        _current.remove(other)


def _client() -> Redis:
    return stream.redis_client(StreamSettings.from_django().redis_url)
