"""A slice server in this process over a small model, and a transport to it that cuts, corrupts and refuses as told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from kvasir.experts import ExpertRange
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slices import plan_slice
from kvasir.worker.slices.download import Patience
from kvasir.worker.slices.http import make_client
from kvasir.worker.slices.store import SliceOffer, SliceStore, StoreOptions
from market.nodes.tokens import TokenHolder, TokenRefusedError, TokenScope
from relay.slices.limits import DownloadBook, SliceLimits
from relay.slices.manifests import DigestBook
from relay.slices.planning import SliceShelf
from relay.slices.server import SliceParts, SliceServer
from tests.unit.moe_files import ModelSpec, write_model

TOKEN = "kvs-good"  # noqa: S105 (of no real node)
SITE = "http://site.test"
ORIGIN = "http://origin.test/model.gguf"
RANGES = (ExpertRange(0, 1, 3), ExpertRange(0, 4, 6), ExpertRange(2, 0, 2))
CHUNK_BYTES = 1000

Fault = Callable[[httpx.Request, bytes], "bytes | Exception | httpx.Response"]


async def check_token(text: str) -> TokenHolder:
    if text != TOKEN:
        raise TokenRefusedError("token: it is not known here")
    return TokenHolder("node-1", "a node", TokenScope.WORKER)


async def no_pages(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"pages"})


@dataclass
class Site:
    """The server, its model and the right bytes of the slice that tests fetch."""

    model: Path
    directory: Path
    card: ModelCard
    expected: bytes
    origin_url: str = ""
    limits: SliceLimits = field(default_factory=SliceLimits)
    now: float = 0.0
    server: SliceServer = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        parts = SliceParts(
            SliceShelf(self.model),
            DigestBook(self.directory / "manifests"),
            DownloadBook(self.limits, lambda: self.now),
            check_token,
            self.origin_url,
        )
        self.server = SliceServer(no_pages, parts)

    def url(self, what: str = "slices", ranges: tuple[ExpertRange, ...] = RANGES) -> str:
        experts = ",".join(f"{item.layer}:{item.start}-{item.stop}" for item in ranges)
        return f"{SITE}/api/{what}/{self.card.fingerprint}?experts={experts}"

    def offer(self, ranges: tuple[ExpertRange, ...] = RANGES) -> SliceOffer:
        return SliceOffer.at(SITE + "/", self.card.fingerprint, ranges)

    def client(self) -> httpx.AsyncClient:
        """A plain client with the token."""
        headers = {"authorization": f"Bearer {TOKEN}"}
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.server), headers=headers)


TINY = ModelSpec()


def make_site(directory: Path, spec: ModelSpec = TINY, **options: Any) -> Site:
    model = write_model(directory / "model.gguf", spec)
    with GGUFIndex.open(model) as index:
        card = ModelCard.from_index(index)
        expected = b"".join(plan_slice(index, card, RANGES).read())
    return Site(model, directory, card, expected, **options)


class Network(httpx.AsyncBaseTransport):
    """Carries requests to the site or to the origin, and does with the answers what `fault` says.

    The fault is called for each whole answer with its body; it returns the body to give, an error to raise (after the
    body's first half, when the body came as its argument), or another response. `cut_at` says after how many bytes of a
    body the connection breaks, request by request.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.fault: Fault = lambda request, body: body
        self.cuts: Iterator[int] = iter(())
        self.requests: list[httpx.Request] = []
        self.bytes_from: dict[str, int] = {"site.test": 0, "origin.test": 0}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.url.host == "origin.test":
            answer = origin_answer(request, self.site.model.read_bytes())
        else:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.site.server)) as client:
                answer = await client.send(request)
        changed = self.fault(request, answer.content)
        if isinstance(changed, httpx.Response):
            stream = _Stream(changed.content, None, self, request.url.host)
            return httpx.Response(changed.status_code, headers=changed.headers, stream=stream)
        if isinstance(changed, Exception):
            raise changed
        cut = next(self.cuts, None) if "/slices/" in request.url.path else None
        stream = _Stream(changed, cut, self, request.url.host)
        return httpx.Response(answer.status_code, headers=answer.headers, stream=stream)

    def asked(self, what: str = "/slices/") -> list[str]:
        """The ranges of the requests so far."""
        return [request.headers.get("range", "") for request in self.requests if what in str(request.url)]


class _Stream(httpx.AsyncByteStream):
    def __init__(self, body: bytes, cut: int | None, network: Network, host: str) -> None:
        self.body, self.cut, self.network, self.host = body, cut, network, host

    async def __aiter__(self) -> AsyncIterator[bytes]:
        stop = len(self.body) if self.cut is None else min(self.cut, len(self.body))
        for start in range(0, stop, CHUNK_BYTES):
            chunk = self.body[start : min(stop, start + CHUNK_BYTES)]
            self.network.bytes_from[self.host] += len(chunk)
            yield chunk
        if stop < len(self.body):
            raise httpx.ReadError("the connection was reset")


def origin_answer(request: httpx.Request, file: bytes) -> httpx.Response:
    """What a plain file server answers."""
    assert "authorization" not in request.headers
    first, last = (int(text) for text in request.headers["range"].removeprefix("bytes=").split("-"))
    body = file[first : last + 1]
    return httpx.Response(206, headers={"content-range": f"bytes {first}-{last}/{len(file)}"}, content=body)


@contextmanager
def pauses() -> Iterator[tuple[Patience, list[float]]]:
    """Patience that waits for nothing, and a list of how long it would have."""
    waited: list[float] = []

    async def pause(seconds: float) -> None:
        waited.append(seconds)

    yield Patience(attempts=4, pause=pause, chance=lambda: 1.0), waited


def store_at(directory: Path, network: Network, **options: Any) -> tuple[SliceStore, list[float]]:
    """A store over this network, and its waits."""
    with pauses() as (patience, waited):
        chosen = StoreOptions(**{"cache_bytes": 10_000_000, "patience": patience, **options})
        return SliceStore(directory, make_client(network), options.pop("token", TOKEN), chosen), waited
