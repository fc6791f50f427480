"""The web side of a generation: put a request on the queue, read its events, cancel it.

Async views call it. It never starts a generation twice, and turns every failure of a backbone or of Redis into a typed
error within seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

from celery import Celery
from django.conf import settings
from kombu.exceptions import KombuError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from backbone.stream.keys import CANCEL_CHANNEL, CLAIM_MARGIN_S, QUEUE, TASK, cancelled_key, queued_key
from backbone.stream.payloads import GenerationRequest
from backbone.stream.reader import StreamEntry, StreamReader
from backbone.stream.silence import ReadLimits
from kvasir.errors import KvasirError

__all__ = [
    "QueueFull",
    "RedisLost",
    "StreamEntry",
    "StreamSettings",
    "cancel",
    "close_clients",
    "enqueue",
    "read",
    "redis_client",
]
logger = logging.getLogger(__name__)

ENQUEUE_DEADLINE_S = 4.0
_SOCKET_TIMEOUT_S = 3.0  # longer than a blocking read
_MAX_CONNECTIONS = 4096  # one for each command in progress


class QueueFull(KvasirError):
    """The queue has reached its limit: try again after `retry_after_s` seconds."""

    def __init__(self, n_waiting: int, limit: int, retry_after_s: int = 5) -> None:
        super().__init__(f"{n_waiting} requests are waiting, and at most {limit} may: try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class RedisLost(KvasirError):
    """Redis could not be reached, so the request's state is unknown."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The web's connection to the backbones. A request that waits longer than `queue_wait_s` is never started."""

    redis_url: str
    queue_limit: int
    queue_wait_s: float

    @classmethod
    def from_django(cls) -> StreamSettings:
        """Return the site's settings."""
        return cls(settings.CELERY_BROKER_URL, settings.KVASIR_QUEUE_LIMIT, settings.KVASIR_QUEUE_WAIT_S)


async def enqueue(request: GenerationRequest, streams: StreamSettings | None = None) -> int:
    """Put a request on the queue. Return the number of requests before it.

    Raises QueueFull, RedisLost, and RequestError if the request cannot be written as JSON. Requests that arrive at the
    same moment may exceed the limit.
    """
    streams = streams or StreamSettings.from_django()
    text = request.to_json()
    client = redis_client(streams.redis_url)
    try:
        n_waiting = int(await client.llen(QUEUE))
        if n_waiting >= streams.queue_limit:
            raise QueueFull(n_waiting, streams.queue_limit)
        await client.set(queued_key(request.request_id), "1", ex=int(streams.queue_wait_s) + CLAIM_MARGIN_S)
        send = asyncio.to_thread(_send, streams, request.request_id, text)
        await asyncio.wait_for(send, ENQUEUE_DEADLINE_S)
    except (RedisError, KombuError, OSError) as error:  # a TimeoutError is an OSError
        raise RedisLost(f"the request could not be queued: {type(error).__name__}: {error}") from error
    return n_waiting


def read(
    request_id: str, last_id: str = "0", streams: StreamSettings | None = None
) -> AsyncGenerator[StreamEntry, None]:
    """Yield a request's events after `last_id`. The last one is `Done` or `Failed`; Redis's errors are never raised.

    The reader itself makes `Failed` events with the codes `backbone_lost`, `no_backbone`, `queue_timeout`, `redis_lost`
    and `stream_gap`. Raises ValueError for an invalid `last_id`.
    """
    streams = streams or StreamSettings.from_django()
    return _reader(streams).read(request_id, last_id)


async def cancel(request_id: str, streams: StreamSettings | None = None) -> bool:
    """Cancel a request, whether it waits or runs. Return False if Redis could not be reached."""
    streams = streams or StreamSettings.from_django()
    try:
        pipeline = redis_client(streams.redis_url).pipeline(transaction=False)
        pipeline.set(cancelled_key(request_id), "1", ex=CLAIM_MARGIN_S)
        pipeline.publish(CANCEL_CHANNEL, request_id)
        await pipeline.execute()
    except RedisError as error:
        logger.warning("request %s could not be cancelled: %s", request_id, error)
        return False
    return True


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Redis]] = WeakKeyDictionary()


def redis_client(url: str) -> Redis:
    """Return this event loop's client of a Redis. A lost connection is retried for less than a second."""
    clients = _clients.setdefault(asyncio.get_running_loop(), {})
    if url not in clients:
        clients[url] = Redis.from_url(
            url,
            decode_responses=True,
            socket_timeout=_SOCKET_TIMEOUT_S,
            socket_connect_timeout=2.0,
            max_connections=_MAX_CONNECTIONS,
            retry=Retry(ExponentialBackoff(cap=0.4, base=0.1), 3, supported_errors=(RedisConnectionError,)),
        )
    return clients[url]


_readers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, float], StreamReader]] = WeakKeyDictionary()


def _reader(streams: StreamSettings) -> StreamReader:
    """Return this event loop's reader of a Redis; there is one."""
    readers = _readers.setdefault(asyncio.get_running_loop(), {})
    key = streams.redis_url, streams.queue_wait_s
    if key not in readers:
        client = redis_client(streams.redis_url)
        readers[key] = StreamReader(client, ReadLimits(queue_wait_s=streams.queue_wait_s))
    return readers[key]


async def close_clients() -> None:
    """Close this event loop's readers and connections, at the end of a process or a test."""
    for reader in _readers.pop(asyncio.get_running_loop(), {}).values():
        await reader.close()
    for client in _clients.pop(asyncio.get_running_loop(), {}).values():
        await client.aclose()


@lru_cache(maxsize=8)
def _sender(redis_url: str) -> Celery:
    """Return a Celery application that only sends, so that a web process loads no tasks."""
    sender = Celery("kvasir-web", broker=redis_url, set_as_current=False)
    sender.conf.update(
        task_ignore_result=True,
        task_serializer="json",
        broker_connection_timeout=2.0,
        broker_transport_options={"socket_timeout": _SOCKET_TIMEOUT_S, "socket_connect_timeout": 2.0},
        task_publish_retry_policy={"max_retries": 2, "interval_start": 0.1, "interval_step": 0.2, "interval_max": 0.3},
    )
    return sender


def _send(streams: StreamSettings, request_id: str, text: str) -> None:
    sender = _sender(streams.redis_url)
    # Logs and monitors show argsrepr, which must not contain the prompt.
    sender.send_task(TASK, args=(text,), queue=QUEUE, expires=streams.queue_wait_s, argsrepr=f"({request_id})")
