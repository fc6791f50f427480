"""`manage.py close_account`: revoke an account's key and its nodes."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from kvasir.errors import ConfigError
from market.nodes.identity import close_account


class Command(BaseCommand):
    help = "Close an account: revoke its key and its nodes. Its credits stay in the ledger."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("account_id", help="the account's id (16 hex digits)")

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            n_nodes = close_account(options["account_id"])
        except ConfigError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"account {options['account_id']} is closed; {n_nodes} nodes were revoked")
