"""One child of the supervisor: its process, its log, and how both end.

A child has a session of its own, so that Ctrl-C in the terminal reaches the supervisor alone. On Linux the system ends
it when the supervisor dies. Start children from the main thread only: the system watches the thread that forks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from kvasir_site.supervisor.policy import ChildPlan

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_LOG_READ_BYTES = 65_536
KILL_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Child:
    """One child: its command and its test of readiness. `is_ready` receives the log since the start."""

    plan: ChildPlan
    command: Sequence[str]
    is_ready: Callable[[str], bool]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # on top of the supervisor's own
    stdin: bytes = field(default=b"", repr=False)


class ChildProcess:
    """The process of a child, again and again. Call only from the main thread."""

    def __init__(self, child: Child, directory: Path, log_dir: Path) -> None:
        """Starts nothing yet. The log of the run before is kept beside the new one."""
        self.child = child
        self.log_path = log_dir / f"{child.plan.name}.log"
        if self.log_path.exists():
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """The running process's id."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process. An OSError rises when there is no such program."""
        name, parent = self.child.plan.name, os.getpid()
        with self.log_path.open("ab") as log:
            log.write(f"--- {name} starts, {datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}\n".encode())
            log.flush()
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                list(self.child.command),
                cwd=self._directory,
                env={**os.environ, **self.child.environment},
                stdin=subprocess.PIPE if self.child.stdin else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: _die_with(parent),  # noqa: PLW1509 - it only makes two system calls
            )
        if self._process.stdin is not None:
            with suppress(BrokenPipeError), self._process.stdin as pipe:
                pipe.write(self.child.stdin)

    def how_it_ended(self) -> str | None:
        """None while the process runs, or when there is none; once it has ended, how. Told once."""
        code = self._process.poll() if self._process is not None else None
        if code is None:
            return None
        self._process = None
        if code >= 0:
            return f"exit code {code}"
        return f"killed by {signal.Signals(-code).name}"

    def ask_to_end(self) -> None:
        """SIGTERM: every child takes it as an orderly stop."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to the process and to all that it started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def is_ready(self) -> bool:
        """Return whether it serves now."""
        return self._process is not None and self.child.is_ready(self.log_since_start())

    def log_since_start(self) -> str:
        """Return what it has said since it was started; the end of it when that is much."""
        with self.log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - _LOG_READ_BYTES))
            return log.read().decode(errors="replace")

    def last_words(self, n_lines: int = 12) -> list[str]:
        """The last lines that it wrote since it was started."""
        return [line for line in self.log_since_start().splitlines() if line.strip()][-n_lines:]


def _die_with(parent: int) -> None:
    """In the child, before its program: end when the supervisor ends, also when that is ended by force."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # it is gone already
            os._exit(1)
