"""The relay of this process, made from Django's settings. `kvasir_site.asgi` and `manage.py serve` share it.

Importing it opens nothing; without REDIS_URL or KVASIR_RELAY_URL there is no directory to announce in.
"""

from __future__ import annotations

from django.conf import settings

from kvasir.relay.directory import FixedDirectory, RedisDirectory, RelayDirectory
from relay.service import RelayService


def _directory() -> RelayDirectory:
    if not (settings.REDIS_URL and settings.RELAY_URL):
        return FixedDirectory()
    from redis.asyncio import Redis

    return RedisDirectory(Redis.from_url(settings.REDIS_URL, socket_timeout=5.0, socket_connect_timeout=5.0))


service = RelayService(relay_id=settings.RELAY_ID, url=settings.RELAY_URL, directory=_directory())
