"""The slice server: GET and HEAD of /api/slices/{fingerprint} and /api/manifests/{fingerprint}, for nodes with a token.

It is an ASGI application in front of the site's pages, because Django's FileResponse has no ranges and does not notice
when a client leaves. Where the server can send files by itself, no byte is copied in this process; elsewhere a thread
reads bounded pieces. It opens no file but the model's and never writes one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qs

from kvasir.errors import GGUFError, SliceError
from market.nodes.tokens import TokenHolder, TokenRefusedError
from relay.slices.limits import BusyError, DownloadBook
from relay.slices.manifests import DigestBook, manifest_answer
from relay.slices.planning import PlannedSlice, SliceShelf, UnknownModelError
from relay.slices.ranges import Conditions, Verdict, judge
from relay.slices.sending import Exchange, send_slice

T = TypeVar("T")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
CheckToken = Callable[[str], Awaitable[TokenHolder]]
WaitOf = Callable[[Message], Awaitable[float]]

_PATH = re.compile(r"/api/(?P<what>slices|manifests)/(?P<fingerprint>[^/]{1,200})")

log = logging.getLogger(__name__)


async def _no_wait(_scope: Message) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class SliceParts:
    """The parts of a slice server. `wait_of` returns the seconds that the address of a request must wait, or 0."""

    shelf: SliceShelf
    digests: DigestBook
    book: DownloadBook
    check_token: CheckToken  # raises TokenRefusedError
    origin_url: str = ""
    wait_of: WaitOf = _no_wait


class _RefusedError(Exception):
    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers


class SliceServer:
    """Answers the two routes, and passes all other requests to `pages`."""

    def __init__(self, pages: Application, parts: SliceParts) -> None:
        self._pages = pages
        self._parts = parts
        self._planning = ThreadPoolExecutor(1, thread_name_prefix="slice-plan")
        self._hashing = ThreadPoolExecutor(1, thread_name_prefix="slice-hash")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        route = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if route is None:
            await self._pages(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        try:
            with self._parts.book.request():
                await self._charge(scope)
                await self._answer(exchange, route)
        except _RefusedError as error:
            await exchange.answer_json(error.status, _error(error.code, str(error)), error.headers)
        except BusyError as error:
            retry = {"retry-after": str(error.retry_after_s)}
            await exchange.answer_json(error.status, _error("busy", str(error)), retry)
        finally:
            exchange.end()

    async def _answer(self, exchange: Exchange, route: re.Match[str]) -> None:
        if exchange.method not in ("GET", "HEAD"):
            raise _RefusedError(405, "method", f"{exchange.method} is not allowed here", allow="GET, HEAD")
        node = await self._node(exchange)
        planned = await self._planned(route["fingerprint"], exchange.query)
        if route["what"] == "manifests":
            await self._answer_manifest(exchange, planned)
        else:
            await self._answer_slice(exchange, planned, node)

    async def _charge(self, scope: Message) -> None:
        wait_s = await self._parts.wait_of(scope)
        if wait_s > 0:
            raise BusyError("this address sends too many requests", 429, max(1, math.ceil(wait_s)))

    async def _node(self, exchange: Exchange) -> TokenHolder:
        scheme, _, text = (exchange.header("authorization") or "").partition(" ")
        try:
            if scheme.lower() != "bearer":
                raise TokenRefusedError("a node token is needed: Authorization: Bearer kvs-…")
            return await self._parts.check_token(text.strip())
        except TokenRefusedError as error:
            raise _RefusedError(401, "token", str(error), **{"www-authenticate": "Bearer"}) from error

    async def _planned(self, fingerprint: str, query: bytes) -> PlannedSlice:
        values = (
            parse_qs(query.decode("latin-1"), max_num_fields=16).get("experts", []) if query.count(b"&") < 16 else []
        )
        if len(values) != 1:
            raise _RefusedError(400, "experts", "name the experts once, as in ?experts=0:0-8,1:0-8")
        try:
            return await self._in(self._planning, self._parts.shelf.planned, fingerprint, values[0])
        except UnknownModelError as error:
            raise _RefusedError(404, "model", str(error)) from error
        except SliceError as error:
            raise _RefusedError(400, "experts", str(error)) from error
        except GGUFError as error:
            log.error("the model cannot be served: %s", error)
            raise _unreadable() from error

    async def _answer_manifest(self, exchange: Exchange, planned: PlannedSlice) -> None:
        digests = self._parts.digests
        try:
            manifest = await self._in(self._planning, digests.lookup, planned)
            if manifest is None:
                manifest = await self._in(self._hashing, digests.manifest, planned)
        except GGUFError as error:
            log.error("the model cannot be hashed: %s", error)
            raise _unreadable() from error
        body = await self._in(self._planning, manifest_answer, planned, manifest, self._parts.origin_url)
        await exchange.answer(200, body, {"content-type": "application/json", "cache-control": "no-cache"})

    async def _answer_slice(self, exchange: Exchange, planned: PlannedSlice, node: TokenHolder) -> None:
        conditions = Conditions(
            exchange.header("range"),
            exchange.header("if-range"),
            exchange.header("if-match"),
            exchange.header("if-none-match"),
        )
        verdict, span = judge(conditions, exchange.method == "GET", planned.etag, planned.plan.n_bytes)
        headers = {"etag": planned.etag, "accept-ranges": "bytes", "cache-control": "private, no-transform"}
        if verdict is Verdict.NOT_MODIFIED:
            await exchange.answer(304, b"", headers)
        elif verdict is Verdict.PRECONDITION_FAILED:
            message = f"the slice's entity tag is {planned.etag}"
            await exchange.answer_json(412, _error("precondition", message), headers)
        elif verdict is Verdict.UNSATISFIABLE:
            headers["content-range"] = f"bytes */{span.total}"
            message = f"the range is not in a slice of {span.total} bytes"
            await exchange.answer_json(416, _error("range", message), headers)
        else:
            headers |= {"content-type": "application/octet-stream", "content-length": str(span.n_bytes)}
            if verdict is Verdict.PART:
                headers["content-range"] = span.content_range
            if exchange.method == "HEAD":
                await exchange.answer(200, b"", headers)
                return
            with self._parts.book.download(node.public_id) as throttle:
                await send_slice(exchange, verdict.value, headers, planned.plan, span, throttle)

    async def _in(self, thread: ThreadPoolExecutor, function: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(thread, function, *args)


def _error(code: str, message: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": message}}).encode()


def _unreadable() -> _RefusedError:
    return _RefusedError(
        503, "unreadable", "the model's file cannot be read now; the site's log says why", **{"retry-after": "10"}
    )
