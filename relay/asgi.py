"""ASGI entry point of a process that is a relay and nothing else: `manage.py serve --relay-only`.

Django is set up by the command; `kvasir_site.asgi` is the one with pages.
"""

from __future__ import annotations

from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import path

from relay.site import service

# Channels has no types, and Django's path is told of an ASGI application where it knows only views
sockets = URLRouter([path("relay", service.application)])  # type: ignore[arg-type]
application = ProtocolTypeRouter({"websocket": sockets})
