"""Asks the API inside the process, with a key, a database and a swarm of the test's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections
from django.http import HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, override_settings

from backbone.api.keys import auth as api_auth
from backbone.api.keys.store import KeyScope, issue
from backbone.api.message_store import using
from tests.site.database import database_at
from tests.site.fake_swarm import FakeSwarm

T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """A whole reply. `parts` are a stream's writes."""

    status: int
    headers: dict[str, str]
    parts: list[bytes]

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error = self.json["error"]
        assert set(self.json) == {"error"} and set(error) == {"message", "type", "param", "code"}
        return dict(error)

    @property
    def frames(self) -> list[tuple[str | None, Any]]:
        """(event, data) of server-sent events, comments left out."""
        found: list[tuple[str | None, Any]] = []
        for block in self.body.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
            if fields:
                data = fields["data"]
                found.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
        return found


@dataclass
class Site:
    """The API with one key that may generate."""

    key: str
    swarm: FakeSwarm = field(default_factory=FakeSwarm)

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        async def guarded() -> T:
            self.swarm.was_cancelled, self.swarm.has_hung = asyncio.Event(), asyncio.Event()
            try:
                async with asyncio.timeout(30):
                    return await work()
            finally:
                await sync_to_async(connections.close_all)()

        with using(self.swarm):
            return asyncio.run(guarded())

    def post(self, path: str, body: object, **headers: str) -> Reply:
        return self.run(lambda: self.apost(path, body, **headers))

    def get(self, path: str, **headers: str) -> Reply:
        return self.run(lambda: self.aget(path, **headers))

    async def open(self, path: str, body: object, **headers: str) -> HttpResponse | StreamingHttpResponse:
        data = body if isinstance(body, str | bytes) else json.dumps(body)
        response: Any = await AsyncClient(raise_request_exception=False).post(
            path, data, content_type="application/json", headers=self._headers(headers)
        )
        assert isinstance(response, HttpResponse | StreamingHttpResponse)
        return response

    async def apost(self, path: str, body: object, **headers: str) -> Reply:
        return await _whole(await self.open(path, body, **headers))

    async def aget(self, path: str, **headers: str) -> Reply:
        response: Any = await AsyncClient(raise_request_exception=False).get(path, headers=self._headers(headers))
        return await _whole(response)

    def _headers(self, headers: dict[str, str]) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} | headers


async def _whole(response: Any) -> Reply:
    if response.streaming:
        parts = [part async for part in response]
        response.close()
    else:
        parts = [response.content]
    return Reply(response.status_code, dict(response.headers), parts)


@contextmanager
def keys_at(path: Path) -> Iterator[str]:
    """A database with one key that may generate, until the end; yields the key."""
    with database_at(path):
        yield issue([KeyScope.GENERATE], "test").text


@contextmanager
def site_with(key: str) -> Iterator[Site]:
    """The API with nothing remembered, until the end."""
    api_auth.MEMORY.clear()
    with override_settings(ALLOWED_HOSTS=["testserver"]):
        yield Site(key)
