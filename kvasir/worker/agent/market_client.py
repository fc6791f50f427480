"""A client of a site's market: register, rotate, heartbeat, demand, volunteer (docs/reference/market.md).

`agent` calls it. Every call ends within a deadline. A call that may succeed later raises MarketAwayError, one that will
not raises MarketRefusedError; a malformed answer counts as away. Tokens are never logged or shown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from kvasir.errors import ConfigError, KvasirError
from kvasir.experts import ExpertRange
from kvasir.worker.agent.demand import Demand, read_runs
from kvasir.worker.agent.plan_state import SiteModel

DEADLINE_S = 30.0  # of one call in all
ANSWER_BYTES_MOST = 16 << 20  # a demand in which every expert of a large model is a run of its own
QUARANTINE_RETRY_S = 600.0

T = TypeVar("T")
_TOKEN = re.compile(r"kvs-([0-9a-f]{16})-\S+", re.ASCII)


class MarketAwayError(KvasirError):
    """The site did not answer, or not now; the same call may succeed later."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class MarketRefusedError(KvasirError):
    """The site refused the call; a repetition will be refused too."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{message} ({status} {code})" if code else f"{message} ({status})")
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class NodeCredentials:
    """A node's id and token. `expires`: when the token ends, as the site writes moments; empty for never."""

    node_id: str
    token: str = field(repr=False)
    expires: str = ""


def given_credentials(token: str) -> NodeCredentials:
    """Return the node of a token that an operator gave. Raises ConfigError, which does not show the token."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise ConfigError("the token is not a node's token: it must begin with kvs- and a node's id")
    return NodeCredentials(match[1], token)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A worker's statement of its coverage."""

    node_id: str
    model: SiteModel
    ranges: tuple[ExpertRange, ...]
    leases: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)  # `backend`, `os`, `device_kind`
    is_leaving: bool = False


@dataclass(frozen=True, slots=True)
class Assigned:
    """An assignment: a range that the market leases to this worker."""

    model: SiteModel
    range: ExpertRange
    n_bytes: int
    kernel: str
    scarcity: float
    rate_microcredits: int
    relay_url: str
    lease_id: str


@dataclass(frozen=True, slots=True)
class NothingWanted:
    """The answer that there is no work now."""

    reason: str
    detail: str
    retry_after_s: float

    @property
    def is_crowded(self) -> bool:
        """Whether there is work that does not fit into the worker's budget."""
        return self.reason in {"the budget is full", "nothing that is wanted fits into the budget"}


class MarketClient:
    """The market of one site. `token` is this node's, "" before it is registered. The caller closes `client`."""

    def __init__(self, client: httpx.AsyncClient, site_url: str, token: str = "") -> None:
        self._client = client
        self._base = site_url.rstrip("/")
        self.token = token

    async def register(self, invite: str, name: str) -> NodeCredentials:
        """Register a node. Raises MarketRefusedError if that needs an invite or an operator."""
        body = {"name": name} | ({"invite": invite} if invite else {})
        answer = await self._ask("POST", "nodes", body, is_known=False)
        return self._read(
            answer, lambda a: NodeCredentials(_text(a["node_id"]), _text(a["token"]), str(a.get("expires") or ""))
        )

    async def rotate(self, node_id: str) -> NodeCredentials:
        """Exchange this node's token for a new one; the old one becomes invalid."""
        answer = await self._ask("POST", "nodes/rotate", {})
        return self._read(answer, lambda a: NodeCredentials(node_id, _text(a["token"]), str(a.get("expires") or "")))

    async def heartbeat(self, beat: Heartbeat) -> float:
        """State which ranges are served; return for how many seconds the statement holds."""
        body: dict[str, Any] = {
            "worker_id": beat.node_id,
            "model": beat.model.fingerprint,
            "n_layer": beat.model.n_layer,
            "n_expert": beat.model.n_expert,
            "segments": _segments(beat.ranges),
            "url": "relay:" if beat.ranges else "",
            "leases": list(beat.leases),
            "leaving": beat.is_leaving,
            **beat.facts,
        }
        answer = await self._ask("POST", "expert-coverage", body)
        return self._read(answer, lambda a: float(a["lease_s"]))

    async def demand(self, model: str) -> Demand:
        """Return the demand for this model's experts."""
        answer = await self._ask("GET", "expert-demand", {"model": model})

        def read(a: Mapping[str, Any]) -> Demand:
            (found,) = a["models"]
            return Demand(_text(found["fingerprint"]), tuple(read_runs(found["layers"])))

        return self._read(answer, read)

    async def volunteer(self, node_id: str, room_bytes: int, ranges: Iterable[ExpertRange]) -> Assigned | NothingWanted:
        """Ask for work. `room_bytes` is for all experts, including those of `ranges`, which this worker has already."""
        body = {"worker_id": node_id, "budget_bytes": room_bytes, "ranges": _segments(ranges)}
        answer = await self._ask("POST", "expert-volunteer", body)
        return self._read(answer, _assignment)

    async def _ask(self, method: str, route: str, body: Mapping[str, Any], *, is_known: bool = True) -> Any:
        url = f"{self._base}/api/{route}"
        headers = {"authorization": f"Bearer {self.token}"} if is_known and self.token else {}
        given: dict[str, Any] = {"params": body} if method == "GET" else {"json": body}
        try:
            async with asyncio.timeout(DEADLINE_S):
                async with self._client.stream(method, url, headers=headers, **given) as response:
                    content = await _body(response)
        except TimeoutError as error:
            raise MarketAwayError(f"{url}: no answer within {DEADLINE_S:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise MarketAwayError(f"{url}: {error or type(error).__name__}") from error
        if response.is_success:
            return _json(response, content)
        raise _refusal(response, content)

    def _read(self, answer: Any, read: Callable[[Mapping[str, Any]], T]) -> T:
        try:
            return read(answer)
        except (LookupError, TypeError, ValueError, KvasirError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise MarketAwayError(
                f"{self._base}: the answer is not as docs/reference/market.md says: {reason}"
            ) from error


async def _body(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > ANSWER_BYTES_MOST:
            raise MarketAwayError(f"{response.url}: the answer has more than {ANSWER_BYTES_MOST} bytes")
    return bytes(body)


def _json(response: httpx.Response, content: bytes) -> Any:
    try:
        return httpx.Response(200, content=content).json()
    except ValueError as error:
        raise MarketAwayError(f"{response.url}: the answer is not JSON; is this a Kvasir site?") from error


def _refusal(response: httpx.Response, content: bytes) -> MarketAwayError | MarketRefusedError:
    status, code, message = response.status_code, "", f"{response.url} answers {response.reason_phrase}"
    try:
        told = httpx.Response(200, content=content).json()["error"]
        code, message = str(told["code"])[:100], str(told["message"])[:500]
    except (LookupError, TypeError, ValueError):
        pass  # a proxy's own page
    if code == "quarantined":
        return MarketAwayError(f"{message} ({status} {code})", QUARANTINE_RETRY_S)
    if status >= 500 or status in {408, 409, 425, 429} or response.is_redirect:
        return MarketAwayError(f"{message} ({status} {code})".replace(" )", ")"), _retry_after_s(response))
    return MarketRefusedError(status, code, message)


def _retry_after_s(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0


def _assignment(answer: Mapping[str, Any]) -> Assigned | NothingWanted:
    if not answer["assigned"]:
        wait_s = min(max(float(answer["retry_after_s"]), 0.1), 3600.0)
        return NothingWanted(_text(answer["reason"]), str(answer.get("detail", "")), wait_s)
    start, stop = answer["experts"]
    return Assigned(
        SiteModel(
            _text(answer["model"]), _text(answer["fingerprint"]), int(answer["n_layer"]), int(answer["n_expert"])
        ),
        ExpertRange(int(answer["layer"]), int(start), int(stop)),
        int(answer["bytes"]),
        _text(answer["kernel"]),
        float(answer["scarcity"]),
        int(answer["rate_microcredits_per_row"]),
        _text(answer["relay_url"]),
        _text(answer["lease_id"]),
    )


def _segments(ranges: Iterable[ExpertRange]) -> list[list[int]]:
    return [[item.layer, item.start, item.stop] for item in ranges]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text was expected, not {type(value).__name__}")
    return value
