"""Django's entry for the pages: their templates, translations and static files are found through it."""

from __future__ import annotations

from django.apps import AppConfig


class FrontendConfig(AppConfig):
    """Names the app; nothing runs at start."""

    name = "frontend"
    verbose_name = "Pages"
