"""The Django app, with its model and management commands. It never imports the engine."""

from __future__ import annotations

from django.apps import AppConfig


class BackboneConfig(AppConfig):
    """Registers the app under its package name."""

    name = "backbone"
    verbose_name = "Kvasir backbone"
