"""The views of all pages, of /live/snapshot and of the staff's sign-in, and the texts for JavaScript.

`frontend.urls` names their routes; `kvasir_site.urls` mounts `sign_in` before the admin. Views read; the forms of the
operator's page go to `market.operator_views`.
"""

from __future__ import annotations

import gzip
import logging
import math

from django.contrib import admin
from django.contrib.admin.views.decorators import staff_member_required
from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.cache import cache_control, never_cache
from django.views.decorators.http import require_GET, require_safe
from django.views.i18n import JavaScriptCatalog
from redis.exceptions import RedisError

from frontend.live.feed import feed
from frontend.operator_facts import live_readings, model_facts, nodes_page, quarantined_nodes
from market.nodes.access import address_of
from market.rate_limits import Rate
from market.service import service

ATTEMPTS = Rate(per_minute=6, burst=10)  # of an address to sign in
RETRY_S = 5.0  # while Redis does not answer

logger = logging.getLogger(__name__)

catalog = cache_control(no_cache=True)(JavaScriptCatalog.as_view(packages=["frontend"]))


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Render the landing page."""
    return render(request, "frontend/home.html")


@require_safe
def contribute(request: HttpRequest) -> HttpResponse:
    """Render the page whose script serves experts."""
    return render(request, "frontend/contribute.html")


@require_safe
def dashboard(request: HttpRequest) -> HttpResponse:
    """Render the page whose script shows the swarm, live."""
    return render(request, "frontend/dashboard.html")


@require_safe
def playground(request: HttpRequest) -> HttpResponse:
    """Render the page whose script chats with the model and shows where each token was computed."""
    return render(request, "frontend/playground.html")


@require_safe
def rewards(request: HttpRequest) -> HttpResponse:
    """Render the page whose script shows an account's balance and days of work."""
    return render(request, "frontend/rewards.html")


@require_safe
def favicon(_request: HttpRequest) -> HttpResponse:
    """Redirect from the address that browsers request on their own."""
    return HttpResponsePermanentRedirect("/static/kvasir/ui/favicon.svg")


@require_GET
async def snapshot(request: HttpRequest) -> HttpResponse:
    """Return one snapshot of the swarm as JSON, for programs and for browsers without WebSockets.

    At most one snapshot a second is built, independent of the number of requests.
    """
    try:
        found = await feed().snapshot()
    except (RedisError, OSError):
        message = "the message store cannot be reached"
        return JsonResponse({"error": {"code": "redis_lost", "message": message}}, status=503)
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        response = HttpResponse(found, content_type="application/json")
        response["Content-Encoding"] = "gzip"
    else:
        response = HttpResponse(gzip.decompress(found), content_type="application/json")
    response["Vary"] = "Accept-Encoding"
    response["Cache-Control"] = "no-store"
    return response


@require_safe
@never_cache
@staff_member_required
def operator(request: HttpRequest) -> HttpResponse:
    """Render the operator's page: nodes, evidence and facts. `q` searches nodes, `page` is the page of the list."""
    search = request.GET.get("q", "")
    readings, problem = live_readings()
    nodes, rows = nodes_page(search, request.GET.get("page", "1"), readings)
    facts = {
        "search": search,
        "nodes": nodes,
        "rows": rows,
        "quarantined": quarantined_nodes(),
        "model": model_facts(),
        "readings": readings,
        "problem": problem,
        "done": request.GET.get("done", ""),
        "done_node": request.GET.get("node", "")[:64],
    }
    return render(request, "frontend/operator.html", facts)


@never_cache
def sign_in(request: HttpRequest) -> HttpResponseBase:
    """Limit the attempts of an address at Django's sign-in; loading the form is not counted.

    Answers 429 after too many attempts, and 503 while Redis cannot count them: without the count, passwords could be
    guessed without limit by disturbing Redis.
    """
    if request.method != "POST":
        return admin.site.login(request)
    market = service()
    try:
        bucket = f"sign-in:{address_of(request, market.settings.proxy_hops)}"
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
