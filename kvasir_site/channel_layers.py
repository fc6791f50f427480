"""Channels' layer for messages that all web processes send on, in memory or in Redis. Called by `settings`.

Only the dashboard's snapshots travel on it. Of a watcher that reads too slowly CAPACITY are kept, the rest is dropped.
"""

from __future__ import annotations

from typing import Any

CAPACITY = 4
EXPIRY_S = 10


def channel_layers(redis_url: str) -> dict[str, dict[str, Any]]:
    """Django's CHANNEL_LAYERS: in Redis where there is a `redis_url`, else within this process."""
    limits = {"capacity": CAPACITY, "expiry": EXPIRY_S}
    if not redis_url:
        return {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer", "CONFIG": limits}}
    config = {"hosts": [redis_url], "prefix": "live", **limits}
    return {"default": {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": config}}
