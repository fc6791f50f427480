"""`manage.py issue_token`: make a node token and print it once, or revoke one."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from kvasir.errors import ConfigError
from market.nodes.tokens import TokenScope, issue, revoke


class Command(BaseCommand):
    help = "Make a token for a worker or a backbone and print it once, or revoke one with --revoke ID."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--scope", choices=[scope.value for scope in TokenScope], help="role that the token allows")
        parser.add_argument("--name", help="name of its node, for the list of tokens and the log")
        parser.add_argument("--days", type=int, metavar="N", help="days until it expires (default: never)")
        parser.add_argument("--revoke", metavar="ID", help="revoke the token with this id (its 16 hex digits)")

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            if options["revoke"]:
                revoke(options["revoke"])
                self.stdout.write(f"token {options['revoke']} is revoked")
                return
            if not options["scope"] or not options["name"]:
                raise CommandError("--scope and --name are needed (or --revoke ID)")
            token = issue(TokenScope(options["scope"]), options["name"], options["days"])
        except ConfigError as error:
            raise CommandError(str(error)) from error
        self.stderr.write(f"id {token.public_id}; the next line is the token, shown only this once:")
        self.stdout.write(token.text)
