"""HTTP byte ranges with a deadline on every read, from the site or from the model's origin.

`slices.download` and `slices.repair` fetch through it. The token is sent to the site only; redirects to another host
are refused; proxies in the environment are ignored. A request that may succeed later raises TransferError, one that
will not raises SourceRefusedError.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx

from kvasir import __version__
from kvasir.errors import DownloadError

CONNECT_S = 10.0
READ_S = 30.0  # without a byte
REDIRECTS_MAX = 3
SLOWEST_BYTES_PER_S = 1024  # over a window; a slower connection counts as cut
WINDOW_S = 30.0
RETRY_AFTER_MAX_S = 60.0
ERROR_BYTES = 2048  # read of an error's body for its message


class TransferError(DownloadError):
    """The connection failed, was cut or was too slow; the same request may succeed later."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SourceRefusedError(DownloadError):
    """The server refuses these bytes; a repetition will be refused too."""


class SliceChangedError(DownloadError):
    """The server's file at this address is not the one that the download began with."""


def make_client(transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    """Return a client for `RangeSource`; the caller closes it. `transport` is for tests."""
    return httpx.AsyncClient(
        transport=transport,
        http1=True,
        http2=False,
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(READ_S, connect=CONNECT_S),
        headers={"user-agent": f"kvasir-worker/{__version__}", "accept-encoding": "identity"},
    )


class RangeSource:
    """One server, with a token or without."""

    def __init__(self, client: httpx.AsyncClient, token: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    async def read_all(self, url: str, n_bytes_max: int, read_s: float) -> bytes:
        """Return a small document. `read_s` is how long the server may take to answer."""
        body = bytearray()
        async with self._response(url, {}, read_s) as response:
            await _raise_for_status(response, (200,))
            async for chunk in self._chunks(response):
                body += chunk
                if len(body) > n_bytes_max:
                    raise SourceRefusedError(f"{url}: the answer has more than {n_bytes_max} bytes")
        return bytes(body)

    async def read_range(
        self, url: str, start: int, stop: int, total: int, etag: str = ""
    ) -> AsyncGenerator[bytes, None]:
        """Yield bytes `start` up to `stop` of a file of `total` bytes as they arrive; raise unless all of them come.

        Raises SliceChangedError if the file has another size or, with `etag`, another entity tag.
        """
        headers = {"range": f"bytes={start}-{stop - 1}"} | ({"if-range": etag} if etag else {})
        async with self._response(url, headers, READ_S) as response:
            await _raise_for_status(response, (200, 206, 416))
            _check_range(response, start, stop, total, etag)
            left = stop - start
            async for chunk in self._chunks(response):
                taken = chunk[:left]
                left -= len(taken)
                yield taken
                if not left:
                    return
        raise TransferError(f"{url}: cut {left} bytes before the end")

    @asynccontextmanager
    async def _response(self, url: str, headers: dict[str, str], read_s: float) -> AsyncIterator[httpx.Response]:
        """Yield the response, after redirects on the same host."""
        target = url
        try:
            for _ in range(REDIRECTS_MAX):
                request = self._client.build_request(
                    "GET", target, headers=self._headers | headers, timeout=httpx.Timeout(read_s, connect=CONNECT_S)
                )
                response = await self._client.send(request, stream=True)
                try:
                    if not response.is_redirect:
                        yield response
                        return
                    target = _redirected(request.url, response.headers["location"])
                finally:
                    await response.aclose()
        except httpx.TransportError as error:
            raise TransferError(f"{url}: {error or type(error).__name__}") from error
        except (httpx.InvalidURL, httpx.HTTPError) as error:
            raise SourceRefusedError(f"{url}: {error}") from error
        raise SourceRefusedError(f"{url}: more than {REDIRECTS_MAX} redirects")

    async def _chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises TransferError if it is too slow."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise SourceRefusedError(f"{response.url}: the body is encoded as {response.headers['content-encoding']}")
        since, n_bytes = self._clock(), 0
        async for chunk in response.aiter_raw():
            n_bytes += len(chunk)
            elapsed = self._clock() - since
            if elapsed > WINDOW_S:
                if n_bytes < elapsed * SLOWEST_BYTES_PER_S:
                    raise TransferError(f"{response.url}: only {n_bytes} bytes in {elapsed:.0f} s")
                since, n_bytes = self._clock(), 0
            yield chunk


def _redirected(source: httpx.URL, location: str) -> str:
    target = source.join(location)
    if (target.scheme, target.host, target.port) != (source.scheme, source.host, source.port):
        raise SourceRefusedError(f"{source}: refused a redirect to another host, {target.host}")
    return str(target)


async def _raise_for_status(response: httpx.Response, wanted: tuple[int, ...]) -> None:
    status = response.status_code
    if status in wanted:
        return
    reason = f"{response.url}: {status} {response.reason_phrase} {await _error_text(response)}".rstrip()
    if status in (408, 425, 429) or status >= 500:
        raise TransferError(reason, _retry_after_s(response.headers.get("retry-after", "")))
    raise SourceRefusedError(reason)


def _retry_after_s(text: str) -> float:
    return min(float(text), RETRY_AFTER_MAX_S) if text.isascii() and text.isdigit() else 0.0


async def _error_text(response: httpx.Response) -> str:
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > ERROR_BYTES:
            break
    return " ".join(body[:ERROR_BYTES].decode("utf-8", "replace").split())[:300]


def _check_range(response: httpx.Response, start: int, stop: int, total: int, etag: str) -> None:
    """Raise unless the body is the requested range of the file."""
    found = response.headers.get("etag", "")
    if etag and found != etag:
        raise SliceChangedError(f"{response.url}: its entity tag was {etag} and is now {found or 'missing'}")
    if response.status_code == 416:
        raise SliceChangedError(f"{response.url}: it no longer has bytes {start} to {stop}")
    if response.status_code == 206:
        told = response.headers.get("content-range", "")
        if told == f"bytes {start}-{stop - 1}/{total}":
            return
        if told.endswith(f"/{total}"):
            raise SourceRefusedError(f"{response.url}: asked for bytes {start}-{stop - 1}, the answer has {told!r}")
        raise SliceChangedError(f"{response.url}: it had {total} bytes, now Content-Range is {told!r}")
    if start or response.headers.get("content-length", str(total)) != str(total):
        raise SourceRefusedError(f"{response.url}: it does not serve byte ranges")
