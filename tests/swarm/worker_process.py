"""Real worker processes for tests: started on a slice, waited for by their JSON lines, always ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0


class WorkerProcess:
    """`python -m kvasir.worker serve`, listening on a port of the system's choice."""

    def __init__(self, slice_path: Path, *options: str, port: int = 0, kernel_isa: str = "") -> None:
        command = [sys.executable, "-m", "kvasir.worker", "serve", "--slice", str(slice_path), "--json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)} | ({"KVASIR_ISA": kernel_isa} if kernel_isa else {})
        self.log_path = slice_path.with_suffix(".log")
        self._log = self.log_path.open("ab")
        self.process = subprocess.Popen(
            [*command, "--listen", f"127.0.0.1:{port}", *options],
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            cwd=slice_path.parent,
        )
        self._unread = b""
        self.listening = self.next_event()
        self.port = int(self.listening["port"])

    def next_event(self) -> dict[str, Any]:
        """The next JSON line, within the deadline."""
        until = time.monotonic() + DEADLINE_S
        assert self.process.stdout is not None
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))
            data = os.read(self.process.stdout.fileno(), 65_536) if ready else b""
            if not data:
                raise AssertionError(f"the worker said nothing more; its log ends with {self.log()[-2000:]}")
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        event: dict[str, Any] = json.loads(line)
        return event

    def log(self) -> str:
        """What it wrote to standard error."""
        return self.log_path.read_text()

    def rss_bytes(self, part: str = "VmRSS") -> int:
        """Its resident memory, as Linux tells it."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith(f"{part}:"))
        return int(line.split()[1]) * 1024

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()


@contextmanager
def worker_process(slice_path: Path, *options: str, port: int = 0, kernel_isa: str = "") -> Iterator[WorkerProcess]:
    """A worker for the length of a block."""
    worker = WorkerProcess(slice_path, *options, port=port, kernel_isa=kernel_isa)
    try:
        yield worker
    finally:
        worker.close()
