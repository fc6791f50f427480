"""`manage.py up`, which is `make run`: the whole service on this machine, until Ctrl-C."""

from __future__ import annotations

import os
import signal
from argparse import ArgumentParser
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from backbone.service_settings import celery_command
from kvasir.errors import KvasirError
from kvasir_site.supervisor.children import Blueprint
from kvasir_site.supervisor.credentials import credentials
from kvasir_site.supervisor.local_slices import forget_work, share_budget
from kvasir_site.supervisor.ports import check_port, free_port
from kvasir_site.supervisor.redis_server import PrivateRedis, find_binary
from kvasir_site.supervisor.runner import Supervisor
from kvasir_site.supervisor.service import SamplePlan, ServiceUse, new_secret
from kvasir_site.supervisor.settings import UpSettings
from kvasir_site.supervisor.state import only_one, write_state
from kvasir_site.supervisor.terminal import Terminal


class Command(BaseCommand):
    help = (
        "Bring up Redis, web server with relay, backbone and local workers; generate a sample; serve until Ctrl-C. "
        "With KVASIR_ONCE=1 stop after the sample. docs/operate/variables.md names all variables."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--prompt", default="Once upon a time, there was a little girl named Lily.", help="how the sample begins"
        )
        parser.add_argument("--max-tokens", type=int, default=160, help="tokens of the sample at most (default 160)")
        parser.add_argument("--seed", type=int, default=7, help="of the sample (default 7)")

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            with only_one(settings.RUN_DIR):
                self._serve(options)
        except KvasirError as error:
            raise CommandError(str(error)) from error

    def _serve(self, options: dict[str, Any]) -> None:
        terminal = Terminal(self._write)
        chosen = _with_ports(UpSettings.from_environ())
        redis = self._redis(chosen, terminal)
        os.environ.setdefault("KVASIR_SECRET_KEY", new_secret())  # one for all children
        call_command("migrate", interactive=False, verbosity=0)
        service = settings.KVASIR_SERVICE
        run_dir = settings.RUN_DIR
        forget_work(run_dir / "workers")
        with credentials(chosen.n_workers, run_dir / "credentials.json") as made:
            connections.close_all()
            blueprint = Blueprint(
                settings=chosen,
                redis=redis,
                worker_budget=share_budget(service.model, max(1, chosen.n_workers)),
                credentials=made,
                run_dir=run_dir,
                backbone_command=lambda name: celery_command(service, name),
                backbone_stop_s=service.stop_s,
            )
            url = f"http://{chosen.reachable_host}:{chosen.port}"
            supervisor = Supervisor(
                blueprint.children(),
                directory=settings.BASE_DIR,
                log_dir=run_dir / "logs",
                say=terminal.say,
                on_change=lambda pids: write_state(run_dir / "service.json", url, pids),
            )
            plan = SamplePlan(service.model, options["prompt"], _sampling(options))
            use = ServiceUse(supervisor, terminal, chosen, plan, made.api_key)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, lambda *_: supervisor.request_stop())
            terminal.say(f"logs: {run_dir / 'logs'}")
            supervisor.run(on_up=use.start)
            terminal.say("stopped")

    def _redis(self, chosen: UpSettings, terminal: Terminal) -> PrivateRedis | None:
        if chosen.redis_url:
            return None
        binary = find_binary()
        port = free_port()
        terminal.say(f"redis: {binary.origin} {binary.path.name} on port {port}")
        return PrivateRedis(binary, port, new_secret())

    def _write(self, text: str) -> None:
        self.stdout.write(text, ending="")
        self.stdout.flush()


def _with_ports(chosen: UpSettings) -> UpSettings:
    """With a free port for 0. Raises ConfigError for a port that is taken."""
    if chosen.port:
        check_port(chosen.host, chosen.port, "KVASIR_PORT")
    for port in chosen.relay_ports:
        check_port(chosen.host, port, "KVASIR_RELAY_PORTS")
    return replace(chosen, port=chosen.port or free_port(chosen.host))


def _sampling(options: dict[str, Any]) -> dict[str, Any]:
    return {"temperature": 0.7, "top_p": 0.95, "seed": options["seed"], "max_tokens": options["max_tokens"]}
