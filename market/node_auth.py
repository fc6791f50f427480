"""The door of the participation routes: a node's token, its address's rate, its account's rate; then the body.

Called by ninja for every route of `market.api` but registration. What it returns is `request.auth`.
"""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from ninja.security import HttpBearer

from market import tokens
from market.access import account_bucket, address_of, bearer, charge
from market.errors import MarketError
from market.service import MarketService, service
from market.tokens import TokenHolder, TokenRefusedError, TokenScope


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
            try:
                holder = await sync_to_async(tokens.check)(text, TokenScope.WORKER)
            except TokenRefusedError as error:
                raise MarketError(401, "token_refused", str(error)) from error
            market.memory.put(text, holder)
        bucket, rate = account_bucket(holder), market.market.account_rate
        await market.call(lambda: charge(market.limits, bucket, rate, market.clock()))
        return holder

    def authenticate(self, request: HttpRequest, token: str) -> TokenHolder | None:
        """Never called: `__call__` does it all, because it must be awaited and say why."""
        raise NotImplementedError


async def charge_address(request: HttpRequest, market: MarketService) -> None:
    """Charge the address that asks. Raises MarketError 429."""
    bucket = f"address:{address_of(request, market.market.proxy_hops)}"
    await market.call(lambda: charge(market.limits, bucket, market.market.address_rate, market.clock()))


async def charge_registration(request: HttpRequest, market: MarketService) -> None:
    """Charge the address that registers a node. Raises MarketError 429."""
    bucket = f"address:register:{address_of(request, market.market.proxy_hops)}"
    await market.call(lambda: charge(market.limits, bucket, market.market.register_rate, market.clock()))
