"""Native workers that dial out to a relay, as processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.swarm.relay_process import PATIENCE_S, ROOT


@dataclass(frozen=True, slots=True)
class JoinProcess:
    """A worker that was told to join."""

    process: subprocess.Popen[str]
    log: Path

    def says(self) -> dict[str, Any]:
        """The next event on its standard output."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        event: dict[str, Any] = json.loads(line)
        return event

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def suspend(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """At once, without a word to anybody."""
        self.process.kill()
        self.process.wait()


@contextmanager
def join_process(url: str, token: str, slice_path: Path, directory: Path) -> Iterator[JoinProcess]:
    """Start `kvasir-worker join`; it has the token from a file. Ended for sure at the end."""
    token_file, log = directory / "token.txt", directory / "worker.log"
    token_file.write_text(token + "\n")
    command = [sys.executable, "-m", "kvasir.worker", "join", url, "--token-file", str(token_file)]
    command += ["--slice", str(slice_path), "--threads", "1", "--json"]
    with log.open("w") as sink:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=sink, text=True, start_new_session=True
        )
    try:
        yield JoinProcess(process, log)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        if process.stdout is not None:
            process.stdout.close()
