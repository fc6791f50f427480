"""`manage.py issue_invite`: make an invite for the registration of nodes, and print it once."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from kvasir.errors import ConfigError
from market.nodes.identity import issue_invite


class Command(BaseCommand):
    help = "Make an invite for --nodes nodes and print it once (sites with KVASIR_REGISTRATION=invite)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--name", required=True, help="name of its recipient, for the list of invites")
        parser.add_argument("--nodes", type=int, default=1, metavar="N", help="number of registrations (default 1)")
        parser.add_argument("--days", type=int, default=30, metavar="N", help="days until it expires (default 30)")

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            invite = issue_invite(options["name"], options["nodes"], options["days"])
        except ConfigError as error:
            raise CommandError(str(error)) from error
        self.stderr.write(f"id {invite.public_id}; the next line is the invite, shown only this once:")
        self.stdout.write(invite.text)
