"""Who serves what, as the backbones write it to Redis: models, living backbones, their counters.

Read by the API for /v1/models, /readyz and /metrics. All entries expire by themselves when a backbone goes away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from backbone.stream.keys import MODEL_NAMES, model_key, stats_key
from backbone.stream.silence import alive_backbones


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that at least one backbone serves. `created` is in Unix seconds; `has_chat`: its file has a template."""

    name: str
    fingerprint: str
    n_ctx: int
    architecture: str
    created: int
    has_chat: bool = False

    def to_fields(self) -> dict[str, str | int]:
        """As the hash in Redis holds it."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "n_ctx": self.n_ctx,
            "architecture": self.architecture,
            "created": self.created,
            "has_chat": int(self.has_chat),
        }


async def models(client: Redis) -> list[ModelEntry]:
    """All models that are served now, by name. Errors of the client rise."""
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
    """Counters of each living backbone by its id; names are those that `BackboneProcess` gives them."""
    found = {}
    for backbone_id in await alive_backbones(client):
        fields: Any = await client.hgetall(stats_key(backbone_id))
        found[backbone_id] = {name: float(value) for name, value in fields.items()}
    return found
