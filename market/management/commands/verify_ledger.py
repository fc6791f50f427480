"""`manage.py verify_ledger`: check the ledger and exit with 1 when it is not sound."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from tqdm import tqdm

from market.ledger.check import LedgerReport, check_ledger, n_events
from market.ledger.posting import rebuild_balances


class Command(BaseCommand):
    help = "Check the ledger: sums of events, orphans, balances, days of work. Exit code 1 after a finding."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--rebuild", action="store_true", help="first correct wrong balances from the entries")
        parser.add_argument("--json", action="store_true", help="write the report as one JSON line")

    def handle(self, *_args: Any, **options: Any) -> None:
        if options["rebuild"]:
            self.stderr.write(f"{rebuild_balances()} balances were corrected")
        with tqdm(total=n_events(), unit=" events", file=sys.stderr, disable=None, leave=False) as bar:
            report = check_ledger(bar.update)
        if options["json"]:
            self.stdout.write(json.dumps(asdict(report) | {"is_sound": report.is_sound}))
        else:
            self._tell(report)
        if not report.is_sound:
            raise CommandError(f"the ledger is not sound: {report.n_findings} findings")

    def _tell(self, report: LedgerReport) -> None:
        self.stdout.write(
            f"{report.n_events} events with {report.n_entries} entries, "
            f"{report.n_batches} batches, {report.n_days} days of work"
        )
        for finding in report.findings:
            self.stdout.write(f"WRONG  {finding}")
        if report.n_findings > len(report.findings):
            self.stdout.write(f"... and {report.n_findings - len(report.findings)} more")
        if report.is_sound:
            self.stdout.write("sound: every event sums to zero, every balance and every day of work agrees")
