"""`manage.py issue_key`: issue an API key and print it once, or revoke one."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from backbone.api.keys.store import KeyScope, issue, revoke
from kvasir.errors import ConfigError


class Command(BaseCommand):
    help = "Issue a key for the REST API and print it once; --revoke ID revokes one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--name", help="the owner's name, for the list of keys and the log")
        parser.add_argument(
            "--scope", action="append", choices=[KeyScope.GENERATE.value, KeyScope.METRICS.value],
            help="a permission; may be repeated (default: generate)",
        )  # fmt: skip
        parser.add_argument("--days", type=int, metavar="N", help="expires after N days (default: never)")
        parser.add_argument("--per-minute", type=int, metavar="N", help="requests a minute (default: KVASIR_KEY_RATE)")
        parser.add_argument("--revoke", metavar="ID", help="revoke the key with this id (16 hex digits)")

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            if options["revoke"]:
                revoke(options["revoke"])
                self.stdout.write(f"key {options['revoke']} is revoked")
                return
            if not options["name"]:
                raise CommandError("--name is needed (or --revoke ID)")
            scopes = [KeyScope(scope) for scope in options["scope"] or [KeyScope.GENERATE]]
            key = issue(scopes, options["name"], days=options["days"], per_minute=options["per_minute"])
        except ConfigError as error:
            raise CommandError(str(error)) from error
        self.stderr.write(f"id {key.public_id}; the next line is the key, shown only this once:")
        self.stdout.write(key.text)
