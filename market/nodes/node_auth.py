"""The door of the participation routes: a node's token, its address's rate, its account's rate; then the body.

Called by ninja for every route of `market.api` but registration. What it returns is `request.auth`.
"""

from __future__ import annotations

from dataclasses import replace

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from ninja.security import HttpBearer

from market.errors import MarketError
from market.models.work import NodeTrust
from market.nodes import tokens
from market.nodes.access import account_bucket, address_of, bearer, charge
from market.nodes.tokens import TokenHolder, TokenRefusedError, TokenScope
from market.service import MarketService, service


class NodeAuth(HttpBearer):
    """`Authorization: Bearer kvs-...`."""

    openapi_description = "A node's token (POST /api/nodes)."

    async def __call__(self, request: HttpRequest) -> TokenHolder:
        """Raises MarketError 401 or 429."""
        market = service()
        text = bearer(request)
        holder = market.memory.get(text)
        if holder is None:
            await charge_address(request, market)
            holder = await sync_to_async(_checked)(text)
            market.memory.put(text, holder)
        bucket, rate = account_bucket(holder), market.market.account_rate
        await market.call(lambda: charge(market.limits, bucket, rate, market.clock()))
        return holder

    def authenticate(self, request: HttpRequest, token: str) -> TokenHolder | None:
        """Never called: `__call__` does it all, because it must be awaited and say why."""
        raise NotImplementedError


async def check_standing(holder: TokenHolder, market: MarketService) -> None:
    """A node in quarantine covers nothing and is promised nothing. Raises MarketError 403, after taking it out."""
    if holder.quarantine:
        await market.call(lambda: market.participation().store.leave(holder.public_id))
        message = f"node {holder.public_id} is in quarantine for a wrong answer; the evidence is {holder.quarantine}"
        raise MarketError(403, "quarantined", message)


def _checked(text: str) -> TokenHolder:
    """Blocks on SQL. Raises MarketError 401."""
    try:
        holder = tokens.check(text, TokenScope.WORKER)
    except TokenRefusedError as error:
        raise MarketError(401, "token_refused", str(error)) from error
    trust = NodeTrust.objects.filter(node_id=holder.public_id, quarantined=True)
    evidence_id = trust.values_list("evidence_id", flat=True).first()
    return holder if evidence_id is None else replace(holder, quarantine=evidence_id or "not named")


async def charge_address(request: HttpRequest, market: MarketService) -> None:
    """Charge the address that asks. Raises MarketError 429."""
    bucket = f"address:{address_of(request, market.market.proxy_hops)}"
    await market.call(lambda: charge(market.limits, bucket, market.market.address_rate, market.clock()))


async def charge_registration(request: HttpRequest, market: MarketService) -> None:
    """Charge the address that registers a node. Raises MarketError 429."""
    bucket = f"address:register:{address_of(request, market.market.proxy_hops)}"
    await market.call(lambda: charge(market.limits, bucket, market.market.register_rate, market.clock()))
