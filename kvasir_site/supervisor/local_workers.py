"""Native workers on this machine, as child processes: started, watched until they are ready, stopped.

Used by the commands that bring up a whole swarm here. A child that cannot start shows its own last words.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from kvasir.errors import ConfigError

READY_DEADLINE_S = 60.0
STOP_DEADLINE_S = 10.0


class LocalWorker:
    """One `kvasir-worker serve` process on a free port of the loopback."""

    def __init__(self, slice_path: Path, *, n_threads: int | None = None, log_path: Path) -> None:
        """Start the process. Call `wait_ready` before use, `stop` at the end."""
        self._slice_path = slice_path
        self._log_path = log_path
        self._n_threads = n_threads
        self._process = self._start(port=0)
        self.address = ""

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def restart(self, port: int) -> None:
        """Start again after `stop`, on a port that backbones know."""
        self._process = self._start(port)

    def resume(self) -> None:
        """Let a suspended process go on, so that it can be stopped."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "kvasir.worker", "serve", "--json"]
        command += ["--slice", str(self._slice_path), "--listen", f"127.0.0.1:{port}"]
        if self._n_threads is not None:
            command += ["--threads", str(self._n_threads)]
        with self._log_path.open("wb") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S) -> str:
        """The address HOST:PORT that the worker listens on; ConfigError with the log's end when it does not come up."""
        line = self._first_line(time.monotonic() + deadline_s)
        try:
            facts = json.loads(line)
            self.address = f"{facts['host']}:{facts['port']}"
        except (ValueError, KeyError, TypeError) as error:
            self.stop()
            words = self._log_path.read_text(errors="replace").strip().splitlines()[-5:]
            raise ConfigError(
                f"the worker for {self._slice_path.name} did not come up within {deadline_s:g} s: "
                + (" | ".join(words) or "it said nothing")
            ) from error
        return self.address

    def stop(self) -> None:
        """Ask the worker to leave, and end it when it does not."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(STOP_DEADLINE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _first_line(self, until: float) -> bytes:
        """The first line of standard output; what there is of it when the process ends or time is up."""
        stdout = self._process.stdout
        if stdout is None:
            return b""
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n") and (left := until - time.monotonic()) > 0:
                if not selector.select(left):
                    break
                read = os.read(stdout.fileno(), 65536)
                if not read:
                    break
                line += read
        return line.splitlines()[0] if line else b""


class LocalWorkers:
    """Run several local workers in one context: all are ready inside, and all are stopped after it, also after an
    error."""

    def __init__(self, slice_paths: list[Path], log_dir: Path, *, n_threads: int | None = None) -> None:
        """Start nothing yet; logs go to `log_dir`."""
        self._slice_paths = slice_paths
        self._log_dir = log_dir
        self._n_threads = n_threads
        self._workers: list[LocalWorker] = []

    @property
    def addresses(self) -> list[str]:
        """HOST:PORT of each, in the order of their slices."""
        return [worker.address for worker in self._workers]

    def __enter__(self) -> Self:
        try:
            for path in self._slice_paths:
                log_path = self._log_dir / f"{path.stem}.log"
                self._workers.append(LocalWorker(path, n_threads=self._n_threads, log_path=log_path))
            for worker in self._workers:
                worker.wait_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        for worker in self._workers:
            worker.stop()
