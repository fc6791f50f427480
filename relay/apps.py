"""Django's entry for the relay: its usage records. The sockets themselves are served by `relay.sockets.application`."""

from __future__ import annotations

from django.apps import AppConfig


class RelayConfig(AppConfig):
    """Names the app. Nothing runs at start."""

    name = "relay"
    verbose_name = "Relay"
    default_auto_field = "django.db.models.BigAutoField"
