"""Django's view of the backbone: it only brings the management commands; the engine is not imported here."""

from __future__ import annotations

from django.apps import AppConfig


class BackboneConfig(AppConfig):
    """Registers the app under its package name."""

    name = "backbone"
    verbose_name = "Kvasir backbone"
