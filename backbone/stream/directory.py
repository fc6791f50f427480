"""The directory in Redis: served models and the counters of live backbones.

Backbones write it with `heartbeat`, the API reads it for /v1/models and /metrics. Entries expire when a backbone stops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from backbone.stream.keys import MODEL_NAMES, model_key, stats_key
from backbone.stream.silence import alive_backbones


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A served model. `created` is in Unix seconds; with `has_chat` its file has a chat template."""

    name: str
    fingerprint: str
    n_ctx: int
    architecture: str
    created: int
    has_chat: bool = False

    def to_fields(self) -> dict[str, str | int]:
        """Return the fields of the hash in Redis."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "n_ctx": self.n_ctx,
            "architecture": self.architecture,
            "created": self.created,
            "has_chat": int(self.has_chat),
        }


async def models(client: Redis) -> list[ModelEntry]:
    """Return all models that are served now, sorted by name. Raises Redis's errors."""
    names: Any = await client.smembers(MODEL_NAMES)
    found = []
    for name in sorted(names):
        fields: Any = await client.hgetall(model_key(name))
        if fields:
            found.append(
                ModelEntry(
                    fields["name"],
                    fields["fingerprint"],
                    int(fields["n_ctx"]),
                    fields["architecture"],
                    int(fields["created"]),
                    fields.get("has_chat") == "1",
                )
            )
    return found


async def backbone_stats(client: Redis) -> dict[str, dict[str, float]]:
    """Return the counters of each live backbone by its id, with the names that `BackboneProcess` uses."""
    found = {}
    for backbone_id in await alive_backbones(client):
        fields: Any = await client.hgetall(stats_key(backbone_id))
        found[backbone_id] = {name: float(value) for name, value in fields.items()}
    return found
