"""`manage.py demo`, which is `make demo`: two workers on this machine, no service, and a story that is proved exact."""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser
from pathlib import Path
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from kvasir.errors import KvasirError
from kvasir_site.supervisor.local_slices import cut_shares
from kvasir_site.supervisor.local_workers import LocalWorkers

RUN_DIR = settings.RUN_DIR / "demo"


class Command(BaseCommand):
    help = (
        "Cut the demo model's experts into two slices, start a worker for each, write a story with every routed expert "
        "computed by them, and compare every logit with one process alone."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--prompt", default="Once upon a time, there was a little girl named Lily.", help="how it begins"
        )
        parser.add_argument(
            "--model", type=Path, default=settings.DEMO_MODEL, help="a GGUF file (default: the demo model)"
        )
        parser.add_argument("--max-tokens", type=int, default=160, help="tokens to write at most (default 160)")
        parser.add_argument("--seed", type=int, default=7, help="the same seed gives the same text (default 7)")

    def handle(self, *args: Any, **options: Any) -> None:
        signal.signal(signal.SIGTERM, _leave)
        try:
            slices = cut_shares(options["model"], 2, RUN_DIR)
            with LocalWorkers(slices, RUN_DIR, n_threads=1) as workers:
                for path, address in zip(slices, workers.addresses, strict=True):
                    self.stdout.write(f"worker {address} holds {path.name}, {path.stat().st_size / 1e6:.1f} MB")
                self.stdout.write("")
                call_command(
                    "generate",
                    options["prompt"],
                    model=options["model"],
                    worker=workers.addresses,
                    max_tokens=options["max_tokens"],
                    seed=options["seed"],
                    compare=True,
                    require_workers=True,
                )
        except KvasirError as error:
            raise CommandError(str(error)) from error


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM as an exception, so that the workers are stopped too."""
    sys.exit(143)
