"""Asks the market's routes inside the process: a database, a Redis and a model of the test's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient, override_settings

from market.coverage.model_facts import ModelFacts
from market.coverage.store import CoverageStore
from market.rate_limits import Rate
from market.service import MarketService, redis_client, using
from market.settings import MarketSettings, TargetBounds
from tests.site.database import database_at

T = TypeVar("T")
FACTS = ModelFacts(
    name="tiny-moe",
    fingerprint="f" * 64,
    n_layer=4,
    n_expert=8,
    d_model=64,
    d_ff=32,
    expert_bytes=(0, 1000, 1500, 1000),  # layer 0 is dense; the types of layer 2 are larger
    kernels=("", "kx1", "kx1", "float"),
    aliases=("general.name of the file",),
)
OFTEN = Rate(per_minute=100_000, burst=10_000)
MARKET = MarketSettings(
    targets=TargetBounds(2, 6), lease_s=45.0, register_rate=OFTEN, address_rate=OFTEN, account_rate=OFTEN
)


@dataclass(frozen=True)
class Reply:
    """A whole reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[str, str]:
        """(code, message); the form is checked."""
        assert set(self.json) == {"error"} and set(self.json["error"]) == {"code", "message"}
        return self.json["error"]["code"], self.json["error"]["message"]


@dataclass
class Now:
    """A clock that a test turns."""

    ms: int = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


@dataclass
class MarketSite:
    """The routes, with a clock that stands still."""

    service: MarketService
    now: Now = field(default_factory=Now)

    @property
    def store(self) -> CoverageStore:
        return self.service.participation().store

    def post(self, path: str, body: object, token: str = "", **headers: str) -> Reply:
        data = body if isinstance(body, str) else json.dumps(body)
        client = AsyncClient(raise_request_exception=False)
        return self._run(client.post(path, data, content_type="application/json", headers=_headers(token, headers)))

    def post_at_once(self, path: str, body: object, tokens: Sequence[str]) -> list[Reply]:
        """The same body from many nodes, all under way together."""

        async def one(token: str) -> Reply:
            headers = _headers(token, {})
            client = AsyncClient(raise_request_exception=False)
            return _reply(await client.post(path, json.dumps(body), content_type="application/json", headers=headers))

        async def every() -> list[Reply]:
            return await asyncio.gather(*map(one, tokens))

        return run(every())

    def get(self, path: str, token: str = "", **headers: str) -> Reply:
        return self._run(AsyncClient(raise_request_exception=False).get(path, headers=_headers(token, headers)))

    def node(self, name: str = "node") -> tuple[str, str]:
        """A new node: (id, token)."""
        made = self.post("/api/nodes", {"name": name}).json
        return made["node_id"], made["token"]

    def beat(self, node: tuple[str, str], segments: object, **fields: object) -> Reply:
        """A heartbeat."""
        body = {"worker_id": node[0], "model": "tiny-moe", "n_layer": 4, "n_expert": 8, "segments": segments, "url": ""}
        return self.post("/api/expert-coverage", body | fields, node[1])

    def _run(self, work: Any) -> Reply:
        async def whole() -> Reply:
            return _reply(await work)

        return run(whole())


def run(work: Coroutine[Any, Any, T]) -> T:
    """In an event loop of its own, bounded."""

    async def guarded() -> T:
        try:
            async with asyncio.timeout(30):
                return await work
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(guarded())


@contextmanager
def market_at(path: Path, redis_url: str, market: MarketSettings = MARKET) -> Iterator[MarketSite]:
    """The market with an empty database and an empty Redis, until the end."""
    now = Now()
    client = redis_client(redis_url)
    client.flushdb()
    service = MarketService(client, market, lambda: FACTS, now)
    with database_at(path / "market.sqlite3"), using(service), override_settings(ALLOWED_HOSTS=["testserver"]):
        yield MarketSite(service, now)


def _reply(response: Any) -> Reply:
    return Reply(response.status_code, dict(response.headers), response.content)


def _headers(token: str, headers: Mapping[str, str]) -> dict[str, str]:
    return ({"Authorization": f"Bearer {token}"} if token else {}) | dict(headers)
