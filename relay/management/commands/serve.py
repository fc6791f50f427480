"""`manage.py serve`: this process's Daphne, with the relay at /relay and Django's pages beside it."""

from __future__ import annotations

# Twisted's reactor must be chosen before anything imports Twisted
from relay.serving import serve  # isort: skip
import logging
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils.module_loading import import_string

from kvasir.errors import ConfigError


class Command(BaseCommand):
    help = "Serve the relay (at /relay) and the site until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
        parser.add_argument(
            "--port", type=int, default=8000, help="port to listen on (default %(default)s; 0: any free one)"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        application = import_string(settings.ASGI_APPLICATION)
        from relay.site import service  # after the application: that sets up what it needs

        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        host = options["host"]
        shown = f"[{host}]" if ":" in host else host

        def started(port: int) -> None:
            service.start()
            self.stdout.write(f"serving on http://{shown}:{port}, relay at ws://{shown}:{port}/relay")
            self.stdout.flush()

        try:
            serve(application, host, options["port"], on_start=started, on_stop=service.stop)
        except ConfigError as error:
            raise CommandError(str(error)) from error
