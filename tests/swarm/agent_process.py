"""Agents as processes of their own: `kvasir-worker join SITE --budget SIZE`, and what they say."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.swarm.relay_process import PATIENCE_S, ROOT

EVENT_DEADLINE_S = 120.0


class AgentProcess:
    """One agent over a state directory; a new one over the same directory is the same worker again."""

    def __init__(self, site: str, budget: int, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.log = state_dir.with_suffix(".log")
        command = [sys.executable, "-m", "kvasir.worker", "join", site, "--budget", str(budget)]
        command += ["--state-dir", str(state_dir), "--threads", "1", "--json"]
        with self.log.open("a") as sink:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=sink, start_new_session=True,
            )  # fmt: skip
        self.events: list[dict[str, Any]] = []  # that were read
        self._n_waited = 0  # of them: up to the last one that was waited for
        self._unread = b""

    def wait_for(self, event: str) -> dict[str, Any]:
        """The next event of this name after the one that was waited for last."""
        until = time.monotonic() + EVENT_DEADLINE_S
        while True:
            for number in range(self._n_waited, len(self.events)):
                self._n_waited = number + 1
                if self.events[number]["event"] == event:
                    return self.events[number]
            if not self._read(max(0.0, until - time.monotonic())):
                raise AssertionError(f"no {event!r} among {self.events}\n{self.log.read_text()}")

    def said(self, event: str) -> list[dict[str, Any]]:
        """All events of this name up to this moment, also those that nobody has waited for."""
        while self._read(0.0):
            pass
        return [one for one in self.events if one["event"] == event]

    def slices(self) -> dict[str, int]:
        """Its finished slices, and when each was last written."""
        return {path.name: path.stat().st_mtime_ns for path in (self.state_dir / "slices").glob("*.gguf")}

    def token(self) -> str:
        return (self.state_dir / "token").read_text().strip()

    def kill(self) -> None:
        """At once, without a word to anybody."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def leave(self) -> int:
        """As Ctrl-C; returns the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """It is gone, whatever it was doing."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _read(self, wait_s: float) -> bool:
        """Take in what it has written, once there is something; False when nothing came, or nothing ever will."""
        assert self.process.stdout is not None
        stdout = self.process.stdout.fileno()
        ready, _, _ = select.select([stdout], [], [], wait_s)
        data = os.read(stdout, 65_536) if ready else b""
        *lines, self._unread = (self._unread + data).split(b"\n")
        self.events += [json.loads(line) for line in lines]
        return bool(data)
