"""Messages that a socket's application has not taken yet, counted in bytes.

`websocket_server` makes one per WebSocket. Over the high-water mark it stops reading from the socket, so that the
sender feels it; Daphne's own queue has no bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any, Protocol

HIGH_WATER_BYTES = 1024 * 1024
LOW_WATER_BYTES = HIGH_WATER_BYTES // 2

Message = MutableMapping[str, Any]


class HasTransport(Protocol):
    """A protocol whose transport can stop reading."""

    @property
    def transport(self) -> Any: ...


class ReceiveQueue(asyncio.Queue[Message]):
    """ASGI messages in order. A single message of any size is always taken."""

    def __init__(self, protocol: HasTransport) -> None:
        super().__init__()
        self._protocol = protocol
        self.n_bytes = 0
        self.is_paused = False
        self.closed_because = ""  # joins the disconnect message, which Daphne makes without it

    def _put(self, item: Message) -> None:
        if item["type"] == "websocket.disconnect":
            item["reason"] = self.closed_because
        super()._put(item)
        self.n_bytes += _size(item)
        if self.n_bytes > HIGH_WATER_BYTES and not self.is_paused and self._protocol.transport is not None:
            self.is_paused = True
            self._protocol.transport.pauseProducing()

    def _get(self) -> Message:
        item = super()._get()
        self.n_bytes -= _size(item)
        if self.is_paused and self.n_bytes <= LOW_WATER_BYTES:
            self.is_paused = False
            transport = self._protocol.transport
            if transport is not None and transport.connected and not transport.disconnecting:
                transport.resumeProducing()
        return item


def _size(item: Message) -> int:
    return len(item.get("bytes") or item.get("text") or b"")
