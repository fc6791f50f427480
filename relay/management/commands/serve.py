"""`manage.py serve`: runs Daphne with the relay at /relay and Django's pages beside it.

TLS ends in front of this process, so Twisted's TLS is not loaded.
"""

from __future__ import annotations

# Before Twisted is imported, which loads OpenSSL (5 MB that are not needed) and picks its reactor
import sys  # isort: skip

sys.modules.setdefault("OpenSSL", None)  # type: ignore[arg-type]

from relay.server.daphne import serve  # noqa: E402, I001
import logging  # noqa: E402
from argparse import ArgumentParser  # noqa: E402
from typing import Any  # noqa: E402

from django.conf import settings  # noqa: E402
from django.core.management.base import BaseCommand, CommandError  # noqa: E402
from django.utils.module_loading import import_string  # noqa: E402

from kvasir.errors import ConfigError  # noqa: E402


class Command(BaseCommand):
    help = "Serve the relay (at /relay) and the site until SIGTERM or Ctrl-C."
    requires_system_checks = ()  # they load all pages; done below, where there are pages

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
        parser.add_argument(
            "--port", type=int, default=8000, help="port to listen on (default %(default)s; 0: any free one)"
        )
        parser.add_argument("--relay-only", action="store_true", help="no pages: one relay process more")

    def handle(self, *_args: Any, **options: Any) -> None:
        if not options["relay_only"]:
            self.check()
        application = import_string("relay.asgi.application" if options["relay_only"] else settings.ASGI_APPLICATION)
        from relay.asgi import service  # after the application, which sets up Django

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
