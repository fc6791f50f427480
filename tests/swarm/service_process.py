"""The whole service as a person starts it: `manage.py up` in a process, with a run directory of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvasir_site.supervisor.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0


class ServiceProcess:
    """A service that was started; what it says is kept."""

    def __init__(self, run_dir: Path, *arguments: str, **environment: str) -> None:
        self.run_dir = run_dir
        self.port = int(environment.get("KVASIR_PORT") or free_port())
        inherited = {name: value for name, value in os.environ.items() if name not in {"REDIS_URL", "DATABASE_URL"}}
        own = {"KVASIR_RUN_DIR": str(run_dir), "KVASIR_PORT": str(self.port), "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "up", *arguments],
            cwd=ROOT,
            env=inherited | own | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._said = ""
        self._news = threading.Condition()
        self._has_ended = False
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def said(self) -> str:
        """Everything on its terminal so far."""
        with self._news:
            return self._said

    @property
    def key(self) -> str:
        """The demo API key that it printed."""
        found = re.findall(r"API key  (kvk-\S+)", self.said)
        assert len(found) == 1, self.report()
        return str(found[0])

    def pids(self) -> dict[str, int]:
        """Its children that run now."""
        state: dict[str, dict[str, int]] = json.loads((self.run_dir / "service.json").read_text())
        return state["pids"]

    def wait_for(self, text: str, after: int = 0) -> None:
        """Until the terminal shows this text, looked for from position `after`."""
        self._wait(lambda: text in self._said[after:], f"it never said {text!r}")

    def wait_up(self) -> None:
        """Until it says how to use it."""
        self.wait_for("Ctrl-C stops everything.")

    def kill(self, name: str) -> int:
        """`kill -9` one of its children; returns where on the terminal what follows begins."""
        with self._news:
            position = len(self._said)
        os.kill(self.pids()[name], signal.SIGKILL)
        return position

    def wait_ended(self) -> int:
        """Its exit code, once it has ended."""
        code = self.process.wait(PATIENCE_S)
        self._listener.join(PATIENCE_S)
        return code

    def stop(self) -> int:
        """Ctrl-C, as a terminal sends it; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.wait_ended()

    def close(self) -> None:
        """End it whatever state it is in; its children end with it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(PATIENCE_S / 2)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self._listener.join(PATIENCE_S)

    def report(self) -> str:
        """What it said, and the ends of its children's logs, for a test that fails."""
        logs = sorted((self.run_dir / "logs").glob("*.log"))
        ends = [f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs]
        return "\n".join([self.said, *ends])

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            while piece := os.read(stdout.fileno(), 65_536):
                with self._news:
                    self._said += piece.decode(errors="replace")
                    self._news.notify_all()
        with self._news:
            self._has_ended = True
            self._news.notify_all()

    def _wait(self, is_so: Callable[[], bool], problem: str) -> None:
        until = time.monotonic() + PATIENCE_S
        with self._news:
            while not is_so():
                if self._has_ended or not self._news.wait(until - time.monotonic()):
                    raise AssertionError(f"{problem}:\n{self.report()}")


@contextmanager
def service_process(run_dir: Path, *arguments: str, **environment: str) -> Iterator[ServiceProcess]:
    """A service that is up inside the context."""
    service = ServiceProcess(run_dir, *arguments, **environment)
    try:
        service.wait_up()
        yield service
    finally:
        service.close()
