"""The market's routes and nothing else; `kvasir_site.urls` mounts them at /api/ (docs/reference/market.md).

Who asks was checked by `market.nodes.node_auth`; a view calls `market.nodes.identity` or
`market.coverage.participation` and hands on.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from ninja import NinjaAPI

from market.api_errors import handle_all
from market.errors import MarketError
from market.ledger.rewards import Quote
from market.ledger.rewards_api import router as rewards_router
from market.nodes import identity, tokens
from market.nodes.access import bearer
from market.nodes.node_auth import NodeAuth, charge_address, charge_registration, check_standing
from market.nodes.tokens import TokenHolder
from market.schemas import CoverageBody, RegisterBody, RevokeBody, VolunteerBody
from market.service import service

node_auth = NodeAuth()
api = NinjaAPI(
    title="Kvasir market", version="1", urls_namespace="market", docs_url=None, openapi_url=None, auth=node_auth
)
handle_all(api)
api.add_router("", rewards_router)


@api.post("/nodes", auth=None)
async def register(request: HttpRequest, body: RegisterBody) -> HttpResponse:
    """A new node, and its token, shown this once. With an account's key as bearer the account owns it."""
    market = service()
    await charge_registration(request, market)
    made = await sync_to_async(identity.register)(market.market, body.name, body.invite, bearer(request))
    answer = {"node_id": made.node_id, "token": made.token, "expires": iso(made.expires)}
    answer["account_id"] = made.account_id
    if made.account_key:
        answer["account_key"] = made.account_key
    return JsonResponse(answer, status=201)


@api.post("/nodes/rotate")
async def rotate(request: HttpRequest) -> HttpResponse:
    """A new token for the node that asks; the one that it sent counts no more."""
    market = service()
    made = await sync_to_async(tokens.rotate)(bearer(request), market.market.node_days)
    market.memory.forget_node(made.public_id)
    return JsonResponse({"token": made.text, "expires": iso(made.expires)})


@api.post("/nodes/revoke", auth=None)
async def revoke(request: HttpRequest, body: RevokeBody) -> HttpResponse:
    """Take back a node: with its account's key any of the account's, with a node's token that node itself."""
    market = service()
    if bearer(request).startswith(f"{identity.ACCOUNT_PREFIX}-"):
        await charge_address(request, market)
        account = await sync_to_async(identity.account_of)(bearer(request))
        await sync_to_async(identity.revoke_node)(account, body.node_id)
    else:
        holder = await node_auth(request)
        if body.node_id != holder.public_id:
            raise MarketError(403, "wrong_worker", f"this token is node {holder.public_id}'s; it takes back no other")
        await sync_to_async(tokens.revoke)(holder.public_id)
    market.memory.forget_node(body.node_id)
    await market.call(lambda: market.participation().store.leave(body.node_id))
    return JsonResponse({"ok": True})


@api.post("/expert-coverage")
async def expert_coverage(request: HttpRequest, body: CoverageBody) -> HttpResponse:
    """A worker's heartbeat."""
    market = service()
    node_id = await _in_good_standing(request)
    return JsonResponse(await market.call(lambda: market.participation().heartbeat(node_id, body)))


@api.get("/expert-demand")
async def expert_demand(request: HttpRequest, model: str | None = None) -> HttpResponse:
    """What is wanted, of which expert. 304 for a client that has this version already."""
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
    """A range for a worker with room, promised for as long as its lease."""
    market = service()
    node_id = await _in_good_standing(request)
    found = await market.call(lambda: market.participation().volunteer(node_id, body))
    if found["assigned"]:
        if market.on_quote is not None:
            await sync_to_async(market.on_quote)(node_id, _quote(found, market.clock()))
        found["relay_url"] = relay_url(request)
    return JsonResponse(found)


def relay_url(request: HttpRequest) -> str:
    """Where workers dial: KVASIR_WORKER_RELAY_URL, else this very site under the name that the worker asked.

    Not KVASIR_RELAY_URL: that is the backbones' address, often one inside the operator's own network.
    """
    if settings.WORKER_RELAY_URL:
        return str(settings.WORKER_RELAY_URL)
    return f"{'wss' if request.is_secure() else 'ws'}://{request.get_host()}/relay"


def iso(moment: datetime | None) -> str | None:
    """As all of the market's answers write a moment: UTC, to the second."""
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _quote(answer: Mapping[str, Any], now_ms: int) -> Quote:
    start, stop = answer["experts"]
    rate = answer["rate_microcredits_per_row"]
    return Quote(answer["fingerprint"], answer["layer"], start, stop, rate, now_ms / 1000)


async def _in_good_standing(request: HttpRequest) -> str:
    """The node that asks. Raises MarketError 403 when it is in quarantine."""
    holder = cast(TokenHolder, request.auth)  # type: ignore[attr-defined]  # ninja puts it there
    await check_standing(holder, service())
    return holder.public_id
