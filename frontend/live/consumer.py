"""The dashboard's WebSocket at /live: whole snapshots, gzipped JSON in binary messages, at most one a second.

It needs no token and accepts no messages. `kvasir_site.asgi` mounts it.
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
    """One watcher. When it reads too slowly, the channel layer drops snapshots."""

    _is_counted = False

    def __init__(self) -> None:
        super().__init__()
        self.groups = [GROUP]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve until the socket closes; a watcher that was counted always leaves the feed."""
        try:
            await super().__call__(scope, receive, send)
        except (RedisError, OSError) as error:  # of the channel layer; the page reconnects by itself
            logger.warning("a watcher's socket is closed: %s: %s", type(error).__name__, error)
            await send({"type": "websocket.close", "code": SERVICE_RESTART, "reason": "the message store was lost"})
        finally:
            if self._is_counted:
                feed().leave()

    async def connect(self) -> None:
        """Accept, so that the client can read a refusal, and send the last snapshot if it is fresh."""
        await self.accept()
        self._is_counted = feed().join()
        if not self._is_counted:
            await self.close(TRY_AGAIN_LATER, "this site has reached its limit of viewers; try again later")
            return
        found = feed().fresh()
        if found is not None:
            await self.send(bytes_data=found)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Close the socket: messages are not accepted."""
        await self.close(POLICY_VIOLATION, "this socket accepts no messages")

    async def live_snapshot(self, message: dict[str, Any]) -> None:
        """Send a snapshot of the group."""
        if self._is_counted:
            await self.send(bytes_data=message["data"])
