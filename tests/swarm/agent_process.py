"""Agents as processes of their own: `kvasir-worker join SITE --budget SIZE`, and what they say."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.swarm.relay_process import PATIENCE_S, ROOT


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
                stdout=subprocess.PIPE, stderr=sink, text=True, start_new_session=True,
            )  # fmt: skip
        self.events: list[dict[str, Any]] = []

    def wait_for(self, event: str) -> dict[str, Any]:
        """Read events until this one comes."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == event:
                return self.events[-1]
        raise AssertionError(f"no {event!r} among {self.events}\n{self.log.read_text()}")

    def said(self, event: str) -> list[dict[str, Any]]:
        """All events of this name so far."""
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
