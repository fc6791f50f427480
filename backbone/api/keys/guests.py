"""Keys for visitors of the playground: anyone gets one, it soon ends, and an address may ask little with all it has.

Called by `api`. KVASIR_PLAYGROUND=off gives none, and those that were given count no more.
"""

from __future__ import annotations

import asyncio
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from backbone.api.chat.requests import Asked
from backbone.api.errors import ApiError
from backbone.api.keys.auth import SQL_DEADLINE_S, asking_address, check_guests_welcome, check_length, take_or_refuse
from backbone.api.keys.store import KeyHolder, KeyScope, issue_guest
from backbone.api.settings import ApiSettings
from market.nodes.rate_limits import Rate

KEY_MINUTES = 60
OF_ADDRESS = Rate(per_minute=2, burst=10)  # keys
OF_ALL = Rate(per_minute=120, burst=240)


async def guest_key(request: HttpRequest) -> dict[str, Any]:
    """A new key for whoever asks. Raises ApiError 403 when guests get none, 429 when there were too many."""
    limits = ApiSettings.from_django()
    check_length(request, limits.body_limit)
    check_guests_welcome(limits)
    await take_or_refuse(f"guest-keys:{asking_address(request, limits)}", OF_ADDRESS, "this address", "keys")
    await take_or_refuse("guest-keys:all", OF_ALL, "all guests together", "keys")
    try:
        async with asyncio.timeout(SQL_DEADLINE_S):
            key, expires = await sync_to_async(issue_guest)(KEY_MINUTES)
    except TimeoutError:
        raise ApiError(503, "database_slow", "the database did not answer in time", retry_after_s=5) from None
    return {"object": "playground.key", "key": key.text, "expires": int(expires.timestamp())}


def check_guest(holder: KeyHolder, asked: Asked) -> None:
    """A guest gets one answer to one prompt, confirmed as usual. Raises ApiError 403 for more."""
    if KeyScope.GUEST not in holder.scopes:
        return
    if len(asked.requests) > 1 or asked.n > 1:
        raise ApiError(403, "guest_limit", "a guest's key gets one answer to one prompt; more needs a key of your own")
    if asked.requests[0].strict:
        raise ApiError(403, "guest_limit", "strict needs a key of your own", param="strict")
