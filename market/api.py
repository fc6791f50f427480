"""The market's routes, and the answer to each of its errors; `kvasir_site.urls` mounts them at /api/.

`market.node_auth` checks the token first; a view calls `market.nodes.identity` or
`market.coverage.participation`. Errors are answered as {"error": {"code", "message"}}.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, cast

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError
from redis.exceptions import RedisError

from market.errors import MarketError
from market.ledger.rewards import Quote
from market.node_auth import NodeAuth, charge_address, charge_registration, check_standing
from market.nodes import identity, tokens
from market.nodes.access import bearer
from market.nodes.tokens import TokenHolder, TokenRefusedError
from market.rewards_api import router as rewards_router
from market.schemas import CoverageBody, RegisterBody, RevokeBody, VolunteerBody, iso
from market.service import service

RETRY_AFTER_S = 5.0
_HANDLED = (MarketError, TokenRefusedError, RedisError, ValidationError, RequestDataTooBig, HttpError, Exception)

logger = logging.getLogger(__name__)

node_auth = NodeAuth()
api = NinjaAPI(
    title="Kvasir market", version="1", urls_namespace="market", docs_url=None, openapi_url=None, auth=node_auth
)
api.add_router("", rewards_router)


@api.post("/nodes", auth=None)
async def register(request: HttpRequest, body: RegisterBody) -> HttpResponse:
    """Register a node and return its token, shown only once. With an account's key as bearer the account owns it."""
    market = service()
    await charge_registration(request, market)
    made = await sync_to_async(identity.register)(market.settings, body.name, body.invite, bearer(request))
    answer = {"node_id": made.node_id, "token": made.token, "expires": iso(made.expires)}
    answer["account_id"] = made.account_id
    if made.account_key:
        answer["account_key"] = made.account_key
    return JsonResponse(answer, status=201)


@api.post("/nodes/rotate")
async def rotate(request: HttpRequest) -> HttpResponse:
    """Give the asking node a new token; the token of this request is no longer valid."""
    market = service()
    made = await sync_to_async(tokens.rotate)(bearer(request), market.settings.node_days)
    market.memory.forget_node(made.public_id)
    return JsonResponse({"token": made.text, "expires": iso(made.expires)})


@api.post("/nodes/revoke", auth=None)
async def revoke(request: HttpRequest, body: RevokeBody) -> HttpResponse:
    """Revoke a node: an account's key revokes any of the account's nodes, a node's token that node itself."""
    market = service()
    if bearer(request).startswith(f"{identity.ACCOUNT_PREFIX}-"):
        await charge_address(request, market)
        account = await sync_to_async(identity.account_of)(bearer(request))
        await sync_to_async(identity.revoke_node)(account, body.node_id)
    else:
        holder = await node_auth(request)
        if body.node_id != holder.public_id:
            raise MarketError(403, "wrong_worker", f"this is the token of node {holder.public_id}: it revokes no other")
        await sync_to_async(tokens.revoke)(holder.public_id)
    market.memory.forget_node(body.node_id)
    await market.call(lambda: market.participation().store.leave(body.node_id))
    return JsonResponse({"ok": True})


@api.post("/expert-coverage")
async def expert_coverage(request: HttpRequest, body: CoverageBody) -> HttpResponse:
    """Record a worker's heartbeat."""
    market = service()
    node_id = await _in_good_standing(request)
    return JsonResponse(await market.call(lambda: market.participation().heartbeat(node_id, body)))


@api.get("/expert-demand")
async def expert_demand(request: HttpRequest, model: str | None = None) -> HttpResponse:
    """Return the demand for each expert; 304 for a client that has this version already."""
    market = service()
    version, body = await market.call(lambda: market.participation().demand(model))
    tag = f'"{version}"'
    if request.headers.get("If-None-Match") == tag:
        response = HttpResponse(status=304)
    else:
        response = HttpResponse(body, content_type="application/json")
    response["ETag"] = tag
    response["Cache-Control"] = "no-cache"
    return response


@api.post("/expert-volunteer")
async def expert_volunteer(request: HttpRequest, body: VolunteerBody) -> HttpResponse:
    """Lease a range to a worker that has room, with a quoted rate."""
    market = service()
    node_id = await _in_good_standing(request)
    found = await market.call(lambda: market.participation().volunteer(node_id, body))
    if found["assigned"]:
        if market.on_quote is not None:
            await sync_to_async(market.on_quote)(node_id, _quote(found, market.clock()))
        found["relay_url"] = relay_url(request)
    return JsonResponse(found)


def relay_url(request: HttpRequest) -> str:
    """Return the address that workers dial: KVASIR_WORKER_RELAY_URL, else this site under the host of the request.

    KVASIR_RELAY_URL is not used: it is the backbones' address, often inside the operator's own network.
    """
    if settings.WORKER_RELAY_URL:
        return str(settings.WORKER_RELAY_URL)
    return f"{'wss' if request.is_secure() else 'ws'}://{request.get_host()}/relay"


def _quote(answer: Mapping[str, Any], now_ms: int) -> Quote:
    start, stop = answer["experts"]
    rate = answer["rate_microcredits_per_row"]
    return Quote(answer["fingerprint"], answer["layer"], start, stop, rate, now_ms / 1000)


async def _in_good_standing(request: HttpRequest) -> str:
    """Return the id of the asking node. Raises MarketError 403 when it is in quarantine."""
    holder = cast(TokenHolder, request.auth)  # type: ignore[attr-defined]  # set by ninja
    await check_standing(holder, service())
    return holder.public_id


def from_exception(error: BaseException) -> MarketError:
    """Return the refusal for an exception. An unexpected one is logged and becomes a 500 without details."""
    match error:
        case MarketError():
            found = error
        case TokenRefusedError():
            found = MarketError(401, "token_refused", str(error))
        case RedisError():
            message = "the market's Redis cannot be reached"
            found = MarketError(503, "redis_lost", message, retry_after_s=RETRY_AFTER_S)
        case ValidationError():
            found = _from_validation(error)
        case RequestDataTooBig():
            found = MarketError(413, "too_large", "the body is too large")
        case HttpError():
            found = MarketError(error.status_code, "malformed", str(error))
        case _:
            logger.error("a request of the market failed", exc_info=error)
            found = MarketError(500, "internal_error", "the site failed to answer this request; its log has the reason")
    return found


def _from_validation(error: ValidationError) -> MarketError:
    """Return a refusal that names the first wrong field."""
    if not error.errors:
        return MarketError(400, "malformed", "the body is malformed")
    first = error.errors[0]
    place = first["loc"]
    field = ".".join(str(part) for part in place[1 if place[0] == "query" else 2 :]) or "the body"
    return MarketError(400, "malformed", f"{field}: {first['msg']}")


def _on_exception(_request: HttpRequest, raised: Exception | type[Exception]) -> HttpResponse:
    error = from_exception(raised if isinstance(raised, Exception) else raised())
    response = JsonResponse({"error": {"code": error.code, "message": str(error)}}, status=error.status)
    if error.retry_after_s is not None:
        response["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.status == 401:
        response["WWW-Authenticate"] = "Bearer"
    return response


for _kind in _HANDLED:
    api.add_exception_handler(_kind, _on_exception)
