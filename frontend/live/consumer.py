"""The dashboard's WebSocket at /live: whole snapshots, gzipped JSON in binary messages, at most one a second.

Anybody may watch; nobody may say anything. `kvasir_site.asgi` mounts it.
"""

from __future__ import annotations

import logging
from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer
from redis.exceptions import RedisError

from frontend.live.feed import GROUP, feed

SERVICE_RESTART = 1012
TRY_AGAIN_LATER = 1013
POLICY_VIOLATION = 1008

logger = logging.getLogger(__name__)


class LiveConsumer(AsyncWebsocketConsumer):
    """One watcher. While it reads too slowly, snapshots that it would get late are dropped by the channel layer."""

    _is_counted = False

    def __init__(self) -> None:
        super().__init__()
        self.groups = [GROUP]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve until the end, whatever ends it."""
        try:
            await super().__call__(scope, receive, send)
        except (RedisError, OSError) as error:  # the layer's; the page dials again by itself
            logger.warning("a watcher is lost: %s: %s", type(error).__name__, error)
            await send({"type": "websocket.close", "code": SERVICE_RESTART, "reason": "the message store was lost"})
        finally:
            if self._is_counted:
                feed().leave()

    async def connect(self) -> None:
        """Accept, so that a refusal can be read, and begin with what is at hand."""
        await self.accept()
        self._is_counted = feed().join()
        if not self._is_counted:
            await self.close(TRY_AGAIN_LATER, "as many watch here as may; try again later")
            return
        found = feed().fresh()
        if found is not None:
            await self.send(bytes_data=found)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Nothing is taken."""
        await self.close(POLICY_VIOLATION, "this socket only tells")

    async def live_snapshot(self, message: dict[str, Any]) -> None:
        """A snapshot for all."""
        if self._is_counted:
            await self.send(bytes_data=message["data"])
