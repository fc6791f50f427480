"""`manage.py generate`: generate text with a model, with or without workers."""

from __future__ import annotations

import secrets
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from backbone.engine.serving.loaded_model import Dense, KernelChoice, LoadedModel
from backbone.engine.serving.sum_calibration import calibrate
from backbone.engine.swarm.edge_pool import EdgePool
from backbone.engine.swarm.reply_format import ReplyFormat
from backbone.engine.swarm.transport import NoWorkers
from backbone.engine.swarm.worker_address import WorkerAddress
from backbone.management.generation import DispatchSettings, first_difference, generate, summary_lines
from backbone.sampling_params import SamplingParams
from kvasir.errors import KvasirError
from kvasir.wire.frames import ReplyType

_HELP = """
Print generated text token by token. Experts held by a --worker are computed there; all others, and those whose
answer is late or wrong, by this process's own replica. The text is the same in every case.

  manage.py generate "Once upon a time"
  manage.py generate "Once upon a time" --worker 127.0.0.1:7401 --worker 127.0.0.1:7402 --compare
"""
_KERNEL_NOTES = {"float": " (dequantised, slow; KX1 computes Q4_K, Q5_K, Q6_K and Q8_0)"}


class Command(BaseCommand):
    help = _HELP

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        from argparse import RawDescriptionHelpFormatter

        kwargs["formatter_class"] = RawDescriptionHelpFormatter
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("prompt", help="the text to continue")
        parser.add_argument(
            "--model", type=Path, default=settings.DEMO_MODEL, help="a GGUF file (default: the demo model)"
        )
        parser.add_argument(
            "--worker", action="append", default=[], metavar="HOST:PORT", help="a listening worker; may be repeated"
        )
        parser.add_argument("--max-tokens", type=int, default=120, help="the most tokens to generate (default 120)")
        parser.add_argument("--seed", type=int, help="the same seed gives the same text (default: random, printed)")
        parser.add_argument(
            "--temperature", type=float, default=0.7, help="0 always takes the likeliest token (default 0.7)"
        )
        parser.add_argument(
            "--top-p", type=float, default=0.95, help="keep the likeliest tokens up to this probability (default 0.95)"
        )
        parser.add_argument(
            "--deadline", type=float, default=10.0, metavar="S", help="seconds to wait for a worker (default 10)"
        )
        parser.add_argument(
            "--reply",
            choices=list(ReplyFormat),
            default=ReplyFormat.F32,
            help="format of workers' replies: exact, half precision, or sums in integers",
        )
        parser.add_argument(
            "--dense",
            choices=(Dense.KX1, Dense.FLOAT),
            default=Dense.KX1,
            help="arithmetic of the dense path: exact, or the torch oracle",
        )
        parser.add_argument("--kernel", choices=list(KernelChoice), default=KernelChoice.AUTO, help="expert kernel")
        parser.add_argument("--threads", type=int, help="threads to compute with (default: all cores)")
        parser.add_argument(
            "--compare", action="store_true", help="run again in this process alone and compare every logit"
        )
        parser.add_argument(
            "--require-workers", action="store_true", help="fail unless workers computed every routed expert"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._generate(options)
        except KvasirError as error:
            raise CommandError(str(error)) from error

    def _generate(self, options: dict[str, Any]) -> None:
        seed = secrets.randbelow(2**32) if options["seed"] is None else options["seed"]
        params = SamplingParams(
            temperature=options["temperature"], top_p=options["top_p"], seed=seed, max_tokens=options["max_tokens"]
        )
        addresses = [WorkerAddress.parse(text) for text in options["worker"]]
        reply_format = ReplyFormat(options["reply"])
        with LoadedModel.open(
            options["model"],
            n_slot=1,
            dense=Dense(options["dense"]),
            kernel=KernelChoice(options["kernel"]),
            n_threads=options["threads"],
        ) as loaded:
            prompts = [loaded.tokenizer.encode(options["prompt"], add_special=True, parse_special=False)]
            sum_scale = calibrate(loaded) if reply_format is ReplyFormat.SUM else None
            dispatch = DispatchSettings(options["deadline"], reply_format, sum_scale)
            reply = ReplyType.F16 if reply_format is ReplyFormat.F16 else ReplyType.F32
            with EdgePool(addresses, loaded.hello(), reply=reply) as pool:
                for name, problem in pool.problems.items():
                    self.stderr.write(self.style.WARNING(f"worker {name} is not used: {problem}"))
                self.stdout.write(options["prompt"], ending="")
                run = generate(loaded, pool, prompts, params, settings=dispatch, on_text=self._show)
                moved = pool.bytes_moved
            self.stdout.write("\n")
            kernel = f"experts by kernel {loaded.store.kernel.name}{_KERNEL_NOTES.get(loaded.store.kernel.name, '')}"
            for line in [*summary_lines(run, moved), kernel, f"seed {seed}"]:
                self.stdout.write(line)
            if options["compare"]:
                self._compare(run, generate(loaded, NoWorkers(), prompts, params, settings=dispatch))
        if options["require_workers"] and run.tally.n_fallback:
            raise CommandError(
                f"{run.tally.n_fallback} of {run.tally.n_pairs} row-experts were not computed by workers"
            )

    def _show(self, _number: int, text: str) -> None:
        self.stdout.write(text, ending="")
        self.stdout.flush()

    def _compare(self, run: Any, alone: Any) -> None:
        difference = first_difference(run, alone)
        if difference is not None:
            raise CommandError(f"not identical: {difference}")
        self.stdout.write(
            self.style.SUCCESS(
                f"identical: all {run.n_output_tokens} tokens and their logits equal the in-process run's"
            )
        )
