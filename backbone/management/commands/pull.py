"""`manage.py pull OWNER/REPO[:QUANT]`: fetch a GGUF model from a hub by `backbone.model_hub`."""

from __future__ import annotations

import os
from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from tqdm import tqdm

from backbone.model_hub import DEFAULT_QUANT, Hub, HubReference, pull
from kvasir.errors import KvasirError

_HELP = """
Fetch a GGUF model from a Hugging Face hub and print the paths of its files. To resume an interrupted pull, run the
same command again. For private or gated models set HF_TOKEN in the environment.

  manage.py pull OWNER/REPO:Q4_K_M
  manage.py generate "Once upon a time" --model models/THE-PRINTED-NAME.gguf
"""


class Command(BaseCommand):
    help = _HELP

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        kwargs["formatter_class"] = RawDescriptionHelpFormatter
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("reference", metavar="OWNER/REPO[:QUANT]", help=f"QUANT defaults to {DEFAULT_QUANT}")
        parser.add_argument("--into", type=Path, default=Path("models"), help="folder for the files (default: models)")
        parser.add_argument("--endpoint", help="another hub's address (default: HF_ENDPOINT, else the public hub)")
        parser.add_argument("--revision", default="main", help="branch, tag or commit (default: main)")

    def handle(self, *args: Any, **options: Any) -> None:
        bars: dict[str, Any] = {}

        def progress(name: str, n_done: int, n_bytes: int) -> None:
            if name not in bars:
                bars[name] = tqdm(desc=Path(name).name, total=n_bytes, unit="B", unit_scale=True, disable=None)
            bars[name].update(n_done - bars[name].n)

        try:
            reference = HubReference.parse(options["reference"])
            hub = Hub(options["endpoint"], os.environ.get("HF_TOKEN"))
            paths = pull(reference, options["into"], hub=hub, revision=options["revision"], progress=progress)
        except KvasirError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt as error:
            raise CommandError("stopped; run the same command again to resume") from error
        finally:
            for bar in bars.values():
                bar.close()
        for path in paths:
            self.stdout.write(str(path))
