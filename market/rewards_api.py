"""The routes of GET /api/rewards, of its entries and of the leaderboard. `market.api` mounts them."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, JsonResponse
from ninja import Query, Router, Schema
from pydantic import Field

from market.ledger.rewards_report import MOST_EARNERS, Asker, Leaderboard, Page, entries, rewards
from market.node_auth import NodeAuth, charge_address
from market.nodes import identity
from market.nodes.access import bearer
from market.service import service

router = Router(auth=None)
_node_auth = NodeAuth()
leaderboard = Leaderboard()


class RewardsQuery(Schema):
    """Parameters of GET /api/rewards."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: Annotated[str, Field(max_length=40)] = ""
    since: date | None = None
    until: date | None = None
    node: Annotated[str, Field(max_length=64)] = ""
    paid: bool | None = None


@router.get("/rewards")
async def get_rewards(request: HttpRequest, query: Query[RewardsQuery]) -> HttpResponse:
    """Return days of work, the newest first: of all nodes of an account's key, or of one node's token."""
    asker = await _asker(request)
    page = Page(query.limit, query.cursor, query.since, query.until, query.node, query.paid)
    return _private(await sync_to_async(rewards)(asker, page))


class EntriesQuery(Schema):
    """Parameters of GET /api/rewards/entries."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: Annotated[str, Field(max_length=40)] = ""


@router.get("/rewards/entries")
async def get_entries(request: HttpRequest, query: Query[EntriesQuery]) -> HttpResponse:
    """Return the entries of the asker's ledger account, the newest first."""
    return _private(await sync_to_async(entries)(await _asker(request), query.limit, query.cursor))


class LeaderboardQuery(Schema):
    """Parameters of GET /api/leaderboard."""

    limit: Annotated[int, Field(ge=1, le=MOST_EARNERS)] = 10


@router.get("/leaderboard")
async def get_leaderboard(request: HttpRequest, query: Query[LeaderboardQuery]) -> HttpResponse:
    """Return the accounts that have earned the most. Needs no token."""
    await charge_address(request, service())
    response = JsonResponse(await sync_to_async(leaderboard.top)(query.limit))
    response["Cache-Control"] = "public, max-age=10"
    return response


async def _asker(request: HttpRequest) -> Asker:
    """Return the asker, by an account's key or a node's token. Raises MarketError or TokenRefusedError."""
    if bearer(request).startswith(f"{identity.ACCOUNT_PREFIX}-"):
        await charge_address(request, service())
        return await sync_to_async(identity.account_of)(bearer(request))
    return await _node_auth(request)


def _private(answer: dict[str, Any]) -> HttpResponse:
    response = JsonResponse(answer)
    response["Cache-Control"] = "no-store"
    return response
