"""Django's entry for the market."""

from __future__ import annotations

from django.apps import AppConfig


class MarketConfig(AppConfig):
    """Names the app; nothing runs at start."""

    name = "market"
    verbose_name = "Market"
    default_auto_field = "django.db.models.BigAutoField"
