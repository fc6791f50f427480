"""The relay and its reference as processes of their own, for `bench_relay`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from kvasir.wire.frames import Role

ROOT = Path(__file__).parents[2]
START_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class RelayUnderTest:
    """A process that serves at `url`."""

    url: str
    pid: int

    def cpu_s(self) -> float:
        """CPU seconds it has used, user and system."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def peak_rss_mb(self) -> float:
        """The most memory that it ever had resident, in MB."""
        status = Path(f"/proc/{self.pid}/status")
        if status.exists():
            peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
            if peak is not None:
                return int(peak[1]) * 1024 / 1e6
        return float(psutil.Process(self.pid).memory_info().rss / 1e6)


@contextmanager
def kvasir_relay(directory: Path) -> Iterator[tuple[RelayUnderTest, dict[Role, str]]]:
    """`manage.py serve --relay-only` on a free port with a database of its own; and a token of each scope."""
    environment = {**os.environ, "DATABASE_URL": f"sqlite:///{directory / 'relay.sqlite3'}"}
    manage = [sys.executable, "manage.py"]
    subprocess.run([*manage, "migrate", "-v", "0"], cwd=ROOT, env=environment, check=True)
    tokens = {role: _issue(manage, environment, role.name.lower()) for role in Role}
    with _process([*manage, "serve", "--relay-only", "--port", "0"], environment) as process:
        yield RelayUnderTest(_said_url(process), process.pid), tokens


@contextmanager
def bare_relay() -> Iterator[RelayUnderTest]:
    """The reference on a free port."""
    with _process([sys.executable, "-m", "benchmarks.relay.bare_relay"], dict(os.environ)) as process:
        yield RelayUnderTest(_said_url(process), process.pid)


def _issue(manage: list[str], environment: dict[str, str], scope: str) -> str:
    command = [*manage, "issue_token", "--scope", scope, "--name", "benchmark"]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@contextmanager
def _process(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _said_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said = re.search(r"ws://\S+", process.stdout.readline())
    if said is None:
        raise RuntimeError("the relay did not come up")
    time.sleep(0.2)
    return said[0]
