"""The relay's reference: the least that splits bundles and passes frames on, with the `websockets` library.

`bench_relay` runs it as a process of its own. No tokens, no accounting, no limits: what forwarding alone costs.
"""

from __future__ import annotations

import asyncio
import itertools

from websockets.asyncio.server import ServerConnection, serve

from kvasir.relay.records import MAX_MESSAGE_BYTES, RECORD, record_spans


class BareRelay:
    """One backbone, workers numbered as they come."""

    def __init__(self) -> None:
        self._workers: dict[int, ServerConnection] = {}
        self._backbone: ServerConnection | None = None
        self._hello = b""
        self._numbers = itertools.count(1)

    async def handle(self, socket: ServerConnection) -> None:
        """Serve one socket; a backbone must come before its workers."""
        opening = await socket.recv(decode=False)
        if opening[:1] == b"B":
            self._backbone, self._hello = socket, opening[1:]
            await self._serve_backbone(socket)
        else:
            edge = next(self._numbers)
            self._workers[edge] = socket
            await socket.send(RECORD.pack(edge, len(self._hello)) + self._hello)
            await self._serve_worker(socket)

    async def _serve_backbone(self, socket: ServerConnection) -> None:
        async for message in socket:
            if isinstance(message, bytes):
                for edge, start, stop in record_spans(message):
                    await self._workers[edge].send(message[start - RECORD.size : stop])

    async def _serve_worker(self, socket: ServerConnection) -> None:
        async for message in socket:
            if self._backbone is not None:
                await self._backbone.send(message)


async def main() -> None:
    """Serve on a free port until killed, and say where."""
    limits = {"compression": None, "max_size": MAX_MESSAGE_BYTES, "ping_interval": None}
    async with serve(BareRelay().handle, "127.0.0.1", 0, **limits) as server:  # type: ignore[arg-type]
        port = next(iter(server.sockets)).getsockname()[1]
        print(f"ws://127.0.0.1:{port}/relay", flush=True)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(main())
