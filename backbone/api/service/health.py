"""/healthz, /readyz and /metrics, for load balancers and Prometheus; they are not part of the OpenAPI page.

/healthz looks at this process alone: if it depended on Redis, an outage would remove all web processes at once.
"""

from __future__ import annotations

import asyncio
import logging
import time

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from backbone.api.errors import from_exception
from backbone.api.keys.auth import ApiKeyAuth
from backbone.api.keys.store import KeyScope
from backbone.api.message_store import message_store
from backbone.api.service.metrics import METRICS, BackboneStats, exposition
from backbone.api.settings import ApiSettings
from kvasir import __version__

logger = logging.getLogger(__name__)

LOOK_DEADLINE_S = 3.0
_STARTED = time.monotonic()
_metrics_key = ApiKeyAuth(KeyScope.METRICS)


@require_safe
async def healthz(_request: HttpRequest) -> HttpResponse:
    """Answer that this process runs."""
    return JsonResponse({"status": "ok", "version": __version__, "uptime_s": round(time.monotonic() - _STARTED, 1)})


@require_safe
async def readyz(_request: HttpRequest) -> HttpResponse:
    """Answer 200 if Redis answers and a backbone has a valid lease, else 503."""
    reason = await _unready()
    if reason is None:
        return JsonResponse({"status": "ready"})
    return JsonResponse({"status": "not ready", "reason": reason}, status=503, headers={"Retry-After": "2"})


@require_safe
async def metrics(request: HttpRequest) -> HttpResponse:
    """Answer in Prometheus's text format, to keys with the scope `metrics` or to all (KVASIR_METRICS_OPEN)."""
    if not ApiSettings.from_django().metrics_open:
        try:
            await _metrics_key(request)
        except Exception as error:
            return from_exception(error).response()
    try:
        async with asyncio.timeout(LOOK_DEADLINE_S):
            stats, queue_length = await message_store().stats(), await message_store().queue_length()
    except Exception as error:  # the process's own counters are still useful
        logger.warning("the backbones' counters could not be read: %s", error)
        stats, queue_length = {}, 0
    return HttpResponse(exposition(METRICS, BackboneStats(stats, queue_length)), content_type=CONTENT_TYPE_LATEST)


async def _unready() -> str | None:
    try:
        async with asyncio.timeout(LOOK_DEADLINE_S):
            backbones = await message_store().backbones()
    except Exception as error:
        logger.warning("not ready: %s", error)
        return "redis"
    return None if backbones else "no backbone"
