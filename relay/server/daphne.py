"""Runs Daphne in this process until SIGTERM or Ctrl-C. `manage.py serve`, tests and benchmarks call it.

The address is tried before anything starts, so that a busy port gives one clear error.
"""

from __future__ import annotations

# Twisted's reactor must be chosen before anything imports Twisted
from relay.server.websocket_server import RelayServer  # isort: skip
import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from daphne.endpoints import build_endpoint_description_strings
from twisted.internet import reactor

from kvasir.errors import ConfigError


def serve(
    application: Any,
    host: str,
    port: int,
    *,
    on_start: Callable[[int], None],
    on_stop: Callable[[], Awaitable[None]],
) -> None:
    """Serve until a signal. `on_start` is called with the port, on the event loop, once the server listens.

    Raises ConfigError when nothing can listen at the address.
    """
    check_address(host, port)
    server = RelayServer(
        application,
        endpoints=build_endpoint_description_strings(host=host, port=port),
        on_stop=on_stop,
        server_name="",
        verbosity=0,
    )
    reactor.callWhenRunning(_call_when_listening, server, on_start)
    server.run()
    if server.failure:
        raise ConfigError(f"cannot listen on {host}:{port}: {server.failure}")


def check_address(host: str, port: int) -> None:
    """Raise ConfigError when nothing can listen at this address now."""
    if not 0 <= port <= 65_535:
        raise ConfigError(f"port {port} does not exist, 0 to 65535 do")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another port, or stop its process"
        ) from error


def _call_when_listening(server: RelayServer, on_start: Callable[[int], None]) -> None:
    if server.listening_addresses:
        _, port = server.listening_addresses[0]
        asyncio.get_event_loop().call_soon(on_start, port)
