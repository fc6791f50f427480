"""ASGI entry point: relay, the dashboard's feed and Django's pages in one Daphne. `manage.py serve` starts it."""

from __future__ import annotations

import os

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kvasir_site.settings")

pages = get_asgi_application()  # sets Django up: what follows may import models

from django.urls import path  # noqa: E402

from frontend.live.consumer import LiveConsumer  # noqa: E402
from relay.asgi import service  # noqa: E402
from relay.slices.site import with_slices  # noqa: E402

# Channels has no types, and Django's path is told of an ASGI application where it knows only views
sockets = URLRouter(
    [path("relay", service.application), path("live", LiveConsumer.as_asgi())]  # type: ignore[arg-type]
)
application = ProtocolTypeRouter({"http": with_slices(pages), "websocket": sockets})  # type: ignore[arg-type]
