"""ASGI entry point: the relay's sockets and Django's pages in one Daphne. Start it with `manage.py serve`."""

from __future__ import annotations

import os

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kvasir_site.settings")

pages = get_asgi_application()  # sets Django up: what follows may import models

from django.urls import path  # noqa: E402

from relay.site import service  # noqa: E402
from relay.slice_site import with_slices  # noqa: E402

# Channels has no types, and Django's path is told of an ASGI application where it knows only views
sockets = URLRouter([path("relay", service.application)])  # type: ignore[no-untyped-call, arg-type]
application = ProtocolTypeRouter({"http": with_slices(pages), "websocket": sockets})  # type: ignore[no-untyped-call, arg-type]
