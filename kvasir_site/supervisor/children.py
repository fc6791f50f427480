"""The children of a service on this machine: commands, environments, who needs whom, in which order they stop.

`supervisor.service` gives the result to the supervisor. Nothing here starts anything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvasir_site.supervisor.child import Child
from kvasir_site.supervisor.credentials import Credentials
from kvasir_site.supervisor.policy import ChildPlan
from kvasir_site.supervisor.redis_server import PrivateRedis
from kvasir_site.supervisor.settings import UpSettings

WEB, REDIS = "web", "redis"
# Stop in this order: backbones finish their answers, then workers leave, then servers close, then Redis ends.
BACKBONES_STOP, WORKERS_STOP, SERVERS_STOP, REDIS_STOPS = range(4)
STOP_MARGIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The parts of the children: `worker_budget` in bytes each, `backbone_stop_s` is a stop in good order."""

    settings: UpSettings
    redis: PrivateRedis | None  # None: REDIS_URL names one
    worker_budget: int
    credentials: Credentials
    run_dir: Path
    backbone_command: Callable[[str], Sequence[str]]
    backbone_stop_s: float

    @property
    def redis_url(self) -> str:
        """Of the Redis that all use."""
        return self.redis.url if self.redis is not None else self.settings.redis_url

    def relay_url(self, port: int) -> str:
        """Of the relay on this port, for processes of this machine."""
        return f"ws://{self.settings.reachable_host}:{port}/relay"

    def children(self) -> list[Child]:
        """All of them, in the order in which they start."""
        return [*self._redis(), self._web(), *self._relays(), *self._workers(), *self._backbones()]

    def _redis(self) -> Iterator[Child]:
        if self.redis is not None:
            server = self.redis
            plan = ChildPlan(REDIS, stop_stage=REDIS_STOPS, start_deadline_s=20.0)
            configuration = server.configuration(self.run_dir)
            yield Child(plan, server.command, lambda _log: server.answers(), stdin=configuration)

    @property
    def _store(self) -> tuple[str, ...]:
        return (REDIS,) if self.redis is not None else ()

    def _server(self, name: str, port: int, *options: str) -> Child:
        plan = ChildPlan(name, needs=self._store, stop_stage=SERVERS_STOP, stop_deadline_s=15.0)
        command = _manage("serve", "--host", self.settings.host, "--port", str(port), *options)
        environment = {
            "REDIS_URL": self.redis_url,
            "KVASIR_RELAY_URL": self.relay_url(port),
            "KVASIR_RELAY_ID": f"{name}-{port}",
        }
        return Child(plan, command, lambda log: "serving on http://" in log, environment)

    def _web(self) -> Child:
        return self._server(WEB, self.settings.port)

    def _relays(self) -> Iterator[Child]:
        for number, port in enumerate(self.settings.relay_ports):
            yield self._server(f"relay-{number + 1}", port, "--relay-only")

    def _workers(self) -> Iterator[Child]:
        """Each knows the site and a budget. They join those of `relay_ports` in turn, else the relay of the site."""
        relays = [(f"relay-{number + 1}", port) for number, port in enumerate(self.settings.relay_ports)]
        for number, token in enumerate(self.credentials.worker_tokens):
            name, needs, command = f"worker-{number + 1}", [WEB], [sys.executable, "-m", "kvasir.worker", "join"]
            command += [f"http://{self.settings.reachable_host}:{self.settings.port}"]
            command += ["--budget", str(self.worker_budget), "--token-file", "/dev/stdin"]
            command += ["--state-dir", str(self.run_dir / "workers" / str(number + 1))]
            command += ["--threads", str(self.settings.worker_threads), "--json"]
            if relays:
                relay, port = relays[number % len(relays)]
                needs.append(relay)
                command += ["--relay", self.relay_url(port)]
            plan = ChildPlan(name, needs=tuple(needs), stop_stage=WORKERS_STOP, stop_deadline_s=20.0)
            yield Child(plan, command, _has_settled, stdin=token.encode())

    def _backbones(self) -> Iterator[Child]:
        for number in range(self.settings.n_backbones):
            name = "backbone" if self.settings.n_backbones == 1 else f"backbone-{number + 1}"
            plan = ChildPlan(
                name,
                needs=(*self._store, WEB),
                stop_stage=BACKBONES_STOP,
                start_deadline_s=600.0,  # a large model from a slow disk
                stop_deadline_s=self.backbone_stop_s + STOP_MARGIN_S,
            )
            environment = {"REDIS_URL": self.redis_url, "KVASIR_TOKEN": self.credentials.backbone_token}
            yield Child(plan, self.backbone_command(name), _consumes, environment)


def _manage(*arguments: str) -> list[str]:
    return [sys.executable, "-u", "manage.py", *arguments]


def _consumes(log: str) -> bool:
    """Return whether Celery says that this worker takes tasks; the model was loaded before."""
    return any(line.endswith(" ready.") for line in log.splitlines())


def _has_settled(log: str) -> bool:
    """Return whether this worker serves all that the market had for its budget."""
    return any(line.startswith('{"event": "settled"') for line in log.splitlines())
