"""/admin/login/: Django's sign-in of staff, for as many attempts as an address may have.

`kvasir_site.urls` mounts it before the admin. Only attempts count, not looks at the form. While Redis cannot be asked
nobody is let in: else whoever can disturb it could guess passwords without end.
"""

from __future__ import annotations

import logging
import math

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from redis.exceptions import RedisError

from market.nodes.access import address_of
from market.nodes.rate_limits import Rate
from market.service import service

ATTEMPTS = Rate(per_minute=6, burst=10)  # of an address
RETRY_S = 5.0  # while Redis cannot be asked

logger = logging.getLogger(__name__)


@never_cache
def page(request: HttpRequest) -> HttpResponseBase:
    """The form, or what became of an attempt; 429 for too many, 503 while they cannot be counted."""
    if request.method != "POST":
        return admin.site.login(request)
    market = service()
    try:
        bucket = f"sign-in:{address_of(request, market.market.proxy_hops)}"
        wait_s = market.limits.take(bucket, ATTEMPTS, market.clock())
    except (RedisError, OSError) as error:
        logger.warning("an attempt to sign in cannot be counted: %s: %s", type(error).__name__, error)
        return _refusal(request, 503, RETRY_S)
    if wait_s > 0:
        return _refusal(request, 429, wait_s)
    return admin.site.login(request)


def _refusal(request: HttpRequest, status: int, wait_s: float) -> HttpResponse:
    seconds = math.ceil(wait_s)
    facts = {"seconds": seconds, "is_too_often": status == 429}
    response = render(request, "frontend/sign_in_refused.html", facts, status=status)
    response["Retry-After"] = str(seconds)
    return response
