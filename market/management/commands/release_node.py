"""`manage.py release_node`: end a node's quarantine."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from kvasir.errors import ConfigError
from market.nodes.trust_store import release


class Command(BaseCommand):
    help = "End the quarantine of a node: it starts again as unproven."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("node_id", help="the node's id (16 hex digits)")

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            kept = release(options["node_id"])
        except ConfigError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"node {options['node_id']} may serve again, as unproven, after {kept.failures} proven lies")
