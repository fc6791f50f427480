"""Cancelled requests from Redis, received by one thread that survives Redis' outages."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from backbone.stream.keys import CANCEL_CHANNEL, cancelled_key

logger = logging.getLogger(__name__)

_POLL_S = 0.5
_REDIAL_S = 0.5


class CancelListener:
    """Calls `on_cancel` on its own thread with the ids of cancelled requests, those of other backbones included."""

    def __init__(
        self, client: Redis, on_cancel: Callable[[str], None], request_ids: Callable[[], Sequence[str]]
    ) -> None:
        """`request_ids` returns the requests to look up after an outage."""
        self._client = client
        self._on_cancel = on_cancel
        self._request_ids = request_ids
        self._is_lost = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvasir-cancels", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        self._thread.join(10.0)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except RedisError as error:
                if not self._is_lost:
                    logger.warning("cancels are not received until the message store is back: %s", error)
                self._is_lost = True
                self._stopping.wait(_REDIAL_S)
            except Exception:  # the thread must live on
                logger.exception("a cancel could not be handled")

    def _listen(self) -> None:
        make_pubsub: Any = self._client.pubsub  # untyped
        with make_pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.subscribe(CANCEL_CHANNEL)
            self._catch_up()
            self._is_lost = False
            while not self._stopping.is_set():
                message = pubsub.get_message(timeout=_POLL_S)
                if message is not None:
                    self._on_cancel(str(message["data"]))

    def _catch_up(self) -> None:
        request_ids = list(self._request_ids())
        if request_ids:
            marks: Any = self._client.mget([cancelled_key(request_id) for request_id in request_ids])
            for request_id, mark in zip(request_ids, marks, strict=True):
                if mark is not None:
                    self._on_cancel(request_id)
