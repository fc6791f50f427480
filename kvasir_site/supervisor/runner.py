"""Runs the children of a service on this machine: carries out what `supervisor.policy` decides.

`manage.py up` gives it the children and a terminal to speak to. It knows no child's business.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kvasir.errors import KvasirError
from kvasir_site.supervisor.child import Child, ChildProcess
from kvasir_site.supervisor.policy import Action, Ask, GiveUp, Kill, Phase, Say, Start, Supervision

LOOK_EVERY_S = 0.05


class ServiceFailed(KvasirError):
    """The service could not come up, or its sample was not what it must be."""


class Supervisor:
    """Call `run` on the main thread; `request_stop` and `fail` from anywhere, a signal handler included."""

    def __init__(
        self,
        children: Sequence[Child],
        *,
        directory: Path,
        log_dir: Path,
        say: Callable[[str], None],
        on_change: Callable[[dict[str, int]], None] = lambda pids: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start nothing yet. Children run in `directory` and write to `log_dir`/NAME.log.

        `on_change` gets the process ids by name whenever a process has started or ended.
        """
        log_dir.mkdir(parents=True, exist_ok=True)
        self._processes = {child.plan.name: ChildProcess(child, directory, log_dir) for child in children}
        self._policy = Supervision([child.plan for child in children])
        self._say = say
        self._on_change = on_change
        self._clock = clock
        self._n_stops_asked = 0
        self._n_stops_done = 0
        self._wake = threading.Event()
        self._failure: str | None = None

    @property
    def pids(self) -> dict[str, int]:
        """The children that run now."""
        return {name: process.pid for name, process in self._processes.items() if process.pid is not None}

    def request_stop(self) -> None:
        """Stop all children in order; asked once more, at once."""
        self._n_stops_asked += 1
        self._wake.set()

    def fail(self, reason: str) -> None:
        """Stop all children in order, then let `run` raise ServiceFailed. Nothing happens when a stop has begun."""
        if self._n_stops_asked == 0:
            self._failure = reason
            self.request_stop()

    def run(self, on_up: Callable[[], None]) -> None:
        """Serve until a stop is requested and all have ended. `on_up` is called once, when all are ready.

        Raises ServiceFailed when a child cannot start, or after `fail`.
        """
        is_told = False
        try:
            while not self._policy.has_ended:
                self._look()
                if self._policy.is_up and not is_told:
                    is_told = True
                    on_up()
                self._wake.wait(LOOK_EVERY_S)
                self._wake.clear()
        finally:
            for process in self._processes.values():
                process.kill()
        if self._failure is not None:
            raise ServiceFailed(self._failure)

    def _look(self) -> None:
        while self._n_stops_done < self._n_stops_asked:
            self._n_stops_done += 1
            self._carry_out(self._policy.stop(self._clock()))
        for name, process in self._processes.items():
            how = process.how_it_ended()
            if how is not None:
                self._on_change(self.pids)
                self._carry_out(self._policy.ended(name, how, self._clock()))
            elif self._policy.phase_of(name) is Phase.STARTING and process.is_ready():
                self._carry_out(self._policy.became_ready(name, self._clock()))
        self._carry_out(self._policy.tick(self._clock()))

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Start(name):
                    self._start(name)
                case Ask(name):
                    self._processes[name].ask_to_end()
                case Kill(name):
                    self._processes[name].kill()
                case Say(text, log_of):
                    self._say("\n".join([text, *(self._last_words(log_of) if log_of else [])]))
                case GiveUp(name, reason):
                    self.fail("\n".join([reason, *self._last_words(name)]))

    def _start(self, name: str) -> None:
        try:
            self._processes[name].start()
        except OSError as error:
            self._carry_out(self._policy.ended(name, str(error), self._clock()))
        self._on_change(self.pids)

    def _last_words(self, name: str) -> list[str]:
        process = self._processes[name]
        words = [f"  {name} | {line}" for line in process.last_words()] or [f"  {name} said nothing"]
        return [*words, f"  (all of it: {process.log_path})"]
