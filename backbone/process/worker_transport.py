"""The backbone process's transport to its workers, made from its settings. A new kind of edge is added here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from backbone.engine.swarm.edge_pool import EdgePool
from backbone.engine.swarm.reply_format import ReplyFormat
from backbone.engine.swarm.transport import NoWorkers, Transport
from backbone.engine.swarm.worker_address import WorkerAddress
from backbone.service_settings import ServiceSettings
from kvasir.errors import ConfigError
from kvasir.relay.directory import FixedDirectory, RedisDirectory, RelayDirectory
from kvasir.wire.frames import Hello, ReplyType

_REDIS_TIMEOUT_S = 5.0


@contextmanager
def make_transport(settings: ServiceSettings, hello: Hello, redis_url: str) -> Iterator[Transport]:
    """Open edges to the workers of the settings, inside the context. Raises ConfigError for invalid addresses.

    With a node token, also connect to the relays: those of the settings, else those that are announced in Redis.
    """
    token = node_token(settings)
    if settings.relays and not token:
        raise ConfigError("KVASIR_RELAYS needs a node token: set KVASIR_TOKEN_FILE (manage.py issue_token)")
    if not settings.workers and not token:
        yield NoWorkers()
        return
    pool = EdgePool(
        [WorkerAddress.parse(text) for text in settings.workers],
        replace(hello, token=token),
        relays=_directory(settings, redis_url) if token else None,
        reply=ReplyType.F16 if ReplyFormat(settings.reply) is ReplyFormat.F16 else ReplyType.F32,
    )
    with pool:
        yield pool


def node_token(settings: ServiceSettings) -> str:
    """Return this backbone's node token, or "". Raises ConfigError if the file cannot be read."""
    if settings.token_file is None:
        return settings.token
    try:
        words = settings.token_file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"KVASIR_TOKEN_FILE={settings.token_file} cannot be read: {type(error).__name__}") from error
    if len(words) != 1:
        raise ConfigError(f"KVASIR_TOKEN_FILE={settings.token_file} has {len(words)} words; it must hold one token")
    return words[0]


def _directory(settings: ServiceSettings, redis_url: str) -> RelayDirectory:
    if settings.relays:
        return FixedDirectory({url: url for url in settings.relays})
    from redis.asyncio import Redis

    return RedisDirectory(
        Redis.from_url(redis_url, socket_timeout=_REDIS_TIMEOUT_S, socket_connect_timeout=_REDIS_TIMEOUT_S)
    )
