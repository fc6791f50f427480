"""GET /api/rewards and nothing else: who asks, and which page. `market.api` mounts it; docs/rewards.md describes it."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, JsonResponse
from ninja import Query, Router, Schema
from pydantic import Field

from market import identity
from market.access import bearer
from market.node_auth import NodeAuth, charge_address
from market.rewards_report import Asker, Page, rewards
from market.service import service

router = Router(auth=None)
_node_auth = NodeAuth()


class RewardsQuery(Schema):
    """What may be asked."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: Annotated[str, Field(max_length=40)] = ""
    since: date | None = None
    until: date | None = None
    node: Annotated[str, Field(max_length=64)] = ""
    paid: bool | None = None


@router.get("/rewards")
async def get_rewards(request: HttpRequest, query: Query[RewardsQuery]) -> HttpResponse:
    """Days of work, the newest first: with an account's key all its nodes', with a node's token its own."""
    if bearer(request).startswith(f"{identity.ACCOUNT_PREFIX}-"):
        await charge_address(request, service())
        asker = Asker(account=await sync_to_async(identity.account_of)(bearer(request)))
    else:
        asker = Asker(account=None, node=await _node_auth(request))
    page = Page(query.limit, query.cursor, query.since, query.until, query.node, query.paid)
    response = JsonResponse(await sync_to_async(rewards)(asker, page))
    response["Cache-Control"] = "no-store"
    return response
