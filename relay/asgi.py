"""The relay of this process, made from Django's settings, and the ASGI application of a process that is only a relay.

`manage.py serve --relay-only` serves `application`; `kvasir_site.asgi` mounts `service` beside the pages. Django is set
up by then. Importing it opens nothing; without REDIS_URL or KVASIR_RELAY_URL there is no directory to announce in.
"""

from __future__ import annotations

from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.urls import path

from kvasir.relay.directory import FixedDirectory, RedisDirectory, RelayDirectory
from relay.service import RelayService


def _directory() -> RelayDirectory:
    if not (settings.REDIS_URL and settings.RELAY_URL):
        return FixedDirectory()
    from redis.asyncio import Redis

    return RedisDirectory(Redis.from_url(settings.REDIS_URL, socket_timeout=5.0, socket_connect_timeout=5.0))


service = RelayService(relay_id=settings.RELAY_ID, url=settings.RELAY_URL, directory=_directory())

# Channels has no types, and Django's `path` is typed for views, not for ASGI applications
sockets = URLRouter([path("relay", service.application)])  # type: ignore[arg-type]
application = ProtocolTypeRouter({"websocket": sockets})
