"""ASGI entry point for Daphne."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kvasir_site.settings")

application = get_asgi_application()
