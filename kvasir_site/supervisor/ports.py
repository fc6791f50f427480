"""Ports of this machine: is one free, which one is. Called by `manage.py up` before anything starts."""

from __future__ import annotations

import errno
import socket

from kvasir.errors import ConfigError


def check_port(host: str, port: int, variable: str) -> None:
    """Raise ConfigError that names the port and the variable when nothing can listen there now."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            hint = f"stop the program that has it, or choose another: {variable}={_another(port)} make run"
            raise ConfigError(f"port {port} on {host} is taken ({variable}): {hint}") from error
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {host} port {port} ({variable}): {reason}") from error


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _another(port: int) -> int:
    return port + 1 if port < 65_535 else 8000
