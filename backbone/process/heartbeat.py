"""The backbone's signs of life in Redis: its lease, what it serves, its counters, once a second from a thread.

A long step does not stall this thread, a dead or hanging engine silences it: the lease then lapses, and whoever reads
a stream of this backbone gets a typed error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from backbone.stream.directory import ModelEntry
from backbone.stream.keys import (
    BACKBONES,
    LEASE_REFRESH_S,
    LEASE_S,
    MODEL_EXPIRY_S,
    MODEL_NAMES,
    STATS_EXPIRY_S,
    lease_key,
    model_key,
    stats_key,
)

logger = logging.getLogger(__name__)


class Heartbeat:
    """Refreshes the lease while `is_healthy` says so; calls `on_sick` once when it no longer does."""

    def __init__(
        self,
        client: Redis,
        backbone_id: str,
        model: ModelEntry,
        *,
        stats: Callable[[], Mapping[str, float]],
        is_healthy: Callable[[], bool],
        on_sick: Callable[[], None],
        also: Callable[[], None] = lambda: None,
    ) -> None:
        """`also` is called after each beat; it must end within seconds and raise nothing."""
        self._client = client
        self._backbone_id = backbone_id
        self._model = model
        self._stats = stats
        self._is_healthy = is_healthy
        self._on_sick = on_sick
        self._also = also
        self._is_lost = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvasir-heartbeat", daemon=True)

    def start(self) -> None:
        """Take the lease, then keep it from a thread."""
        self.beat()
        self._thread.start()

    def stop(self) -> None:
        """Give the lease back and end the thread."""
        self._stopping.set()
        self._thread.join(10.0)
        self._leave()

    def beat(self) -> None:
        """Write everything once. A Redis that is away is reported once, and tried again next time."""
        commands = self._client.pipeline(transaction=False)
        commands.set(lease_key(self._backbone_id), "1", ex=LEASE_S)
        commands.sadd(BACKBONES, self._backbone_id)
        fields: Any = dict(self._model.to_fields())
        commands.hset(model_key(self._model.name), mapping=fields)
        commands.expire(model_key(self._model.name), MODEL_EXPIRY_S)
        commands.sadd(MODEL_NAMES, self._model.name)
        stats: Any = dict(self._stats())
        commands.hset(stats_key(self._backbone_id), mapping=stats)
        commands.expire(stats_key(self._backbone_id), STATS_EXPIRY_S)
        try:
            commands.execute()
        except RedisError as error:
            if not self._is_lost:
                logger.error("the message store cannot be reached: %s", error)
            self._is_lost = True
        else:
            if self._is_lost:
                logger.warning("the message store is back")
            self._is_lost = False

    def _run(self) -> None:
        while not self._stopping.wait(LEASE_REFRESH_S):
            if not self._is_healthy():
                logger.critical("the engine is dead or hangs: this backbone gives up its lease")
                self._leave()
                self._on_sick()
                return
            self.beat()
            self._also()

    def _leave(self) -> None:
        try:
            self._client.srem(BACKBONES, self._backbone_id)
            self._client.delete(lease_key(self._backbone_id), stats_key(self._backbone_id))
        except RedisError as error:
            logger.warning("the lease could not be given back, it lapses by itself: %s", error)
