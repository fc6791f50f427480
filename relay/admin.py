"""The relay's table in Django's admin, read-only, for staff."""

from __future__ import annotations

from django.contrib import admin

from market.admin import LookOnly
from relay.models import EdgeUsage


@admin.register(EdgeUsage)
class EdgeUsageAdmin(LookOnly):
    """The usage of each edge."""

    list_display = ("edge", "relay_id", "worker_token", "backbone_token", "began", "seconds", "mood")
    search_fields = ("worker_token", "backbone_token", "relay_id")
