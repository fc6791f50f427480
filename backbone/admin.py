"""API keys in Django's admin, read-only for staff. Their digests are never shown."""

from __future__ import annotations

from django.contrib import admin

from backbone.models import ApiKey
from market.admin import LookOnly


@admin.register(ApiKey)
class ApiKeyAdmin(LookOnly):
    """Keys of the REST API."""

    list_display = ("public_id", "name", "scopes", "per_minute", "created", "expires", "revoked")
    search_fields = ("public_id", "name")
