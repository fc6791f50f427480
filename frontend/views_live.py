"""/live/snapshot: one snapshot of the swarm as JSON, for programs and for browsers without WebSockets."""

from __future__ import annotations

import gzip

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_GET
from redis.exceptions import RedisError

from frontend.live.feed import feed


@require_GET
async def snapshot(request: HttpRequest) -> HttpResponse:
    """At most one a second is built, however many ask."""
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
