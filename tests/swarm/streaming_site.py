"""An ASGI application that streams far more than a client reads, under the relay's server; started by a test.

`/stream` sends 256 pieces of 1 MiB; `/count` says how many pieces the server has taken so far.
"""

from __future__ import annotations

from relay.server.daphne import serve  # isort: skip
from typing import Any

PIECES = 256
taken = 0


async def application(scope: Any, receive: Any, send: Any) -> None:
    global taken  # noqa: PLW0603
    if scope["type"] != "http":
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-pieces", b"many")]})
    if scope["path"] == "/count":
        await send({"type": "http.response.body", "body": str(taken).encode()})
        return
    for _ in range(PIECES):
        await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        taken += 1
    await send({"type": "http.response.body", "body": b"end"})


async def stopped() -> None:
    """Nothing to do first."""


if __name__ == "__main__":
    serve(application, "127.0.0.1", 0, on_start=lambda port: print(port, flush=True), on_stop=stopped)
