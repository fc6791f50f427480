"""The backbone's lease, directory entry and counters in Redis, refreshed once a second by a thread.

A long step does not delay the thread. If the engine is dead or hangs, it gives up the lease, and readers of this
backbone's streams get a typed error.
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
    """Refreshes the lease while `is_healthy` returns True; then calls `on_sick` once."""

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
        """`also` is called after each beat; it must return within seconds and not raise."""
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
        """Take the lease and start the thread that refreshes it."""
        self.beat()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and release the lease."""
        self._stopping.set()
        self._thread.join(10.0)
        self._leave()

    def beat(self) -> None:
        """Write all entries once. An outage of Redis is logged once; the next beat tries again."""
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
                logger.critical("the engine is dead or hangs: this backbone releases its lease")
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
            logger.warning("the lease could not be released and will expire: %s", error)
