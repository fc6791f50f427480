"""The backbone process's way to its workers, chosen by its settings. New kinds of edges are wired in here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from backbone.engine.edge_pool import EdgePool, WorkerAddress
from backbone.engine.reply_format import ReplyFormat
from backbone.engine.transport import NoWorkers, Transport
from backbone.service_settings import ServiceSettings
from kvasir.errors import ConfigError
from kvasir.wire_frames import Hello, ReplyType


@contextmanager
def make_transport(settings: ServiceSettings, hello: Hello) -> Iterator[Transport]:
    """Edges to the workers of the settings, open inside the context. Raises ConfigError for what cannot be dialled."""
    if settings.relays:
        raise ConfigError(f"KVASIR_RELAYS={','.join(settings.relays)}: this backbone dials workers, not relays")
    if not settings.workers:
        yield NoWorkers()
        return
    addresses = [WorkerAddress.parse(text) for text in settings.workers]
    reply = ReplyType.F16 if ReplyFormat(settings.reply) is ReplyFormat.F16 else ReplyType.F32
    with EdgePool(addresses, hello, reply=reply) as pool:
        yield pool
