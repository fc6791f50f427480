"""The authentication of the participation routes: the address's rate, the node's token, its account's rate.

Called by ninja for the routes of `market.api`, before it parses the body. The result is `request.auth`.
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
from market.nodes.tokens import TokenHolder, TokenScope
from market.service import MarketService, service


class NodeAuth(HttpBearer):
    """`Authorization: Bearer kvs-...`."""

    openapi_description = "A node's token (POST /api/nodes)."

    async def __call__(self, request: HttpRequest) -> TokenHolder:
        """Return the holder of the token. Raises TokenRefusedError, or MarketError 429."""
        market = service()
        text = bearer(request)
        holder = market.memory.get(text)
        if holder is None:
            await charge_address(request, market)
            holder = await sync_to_async(_checked)(text)
            market.memory.put(text, holder)
        bucket, rate = account_bucket(holder), market.settings.account_rate
        await market.call(lambda: charge(market.limits, bucket, rate, market.clock()))
        return holder

    def authenticate(self, request: HttpRequest, token: str) -> TokenHolder | None:
        """Unused: `__call__` replaces it, because it must be awaited and raise the reason."""
        raise NotImplementedError


async def check_standing(holder: TokenHolder, market: MarketService) -> None:
    """Raise MarketError 403 for a node in quarantine, after removing its coverage and leases."""
    if holder.quarantine:
        await market.call(lambda: market.participation().store.leave(holder.public_id))
        message = f"node {holder.public_id} is in quarantine for a wrong answer; the evidence is {holder.quarantine}"
        raise MarketError(403, "quarantined", message)


def _checked(text: str) -> TokenHolder:
    """Return the holder of a worker's token. Blocks on SQL. Raises TokenRefusedError."""
    holder = tokens.check(text, TokenScope.WORKER)
    trust = NodeTrust.objects.filter(node_id=holder.public_id, quarantined=True)
    evidence_id = trust.values_list("evidence_id", flat=True).first()
    return holder if evidence_id is None else replace(holder, quarantine=evidence_id or "not named")


async def charge_address(request: HttpRequest, market: MarketService) -> None:
    """Charge the address of a request. Raises MarketError 429."""
    bucket = f"address:{address_of(request, market.settings.proxy_hops)}"
    await market.call(lambda: charge(market.limits, bucket, market.settings.address_rate, market.clock()))


async def charge_registration(request: HttpRequest, market: MarketService) -> None:
    """Charge the address that registers a node. Raises MarketError 429."""
    bucket = f"address:register:{address_of(request, market.settings.proxy_hops)}"
    await market.call(lambda: charge(market.limits, bucket, market.settings.register_rate, market.clock()))
