"""The site and nginx as processes of their own, for `bench_slices`: both serve byte ranges of one model file."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
START_DEADLINE_S = 60.0
NGINX = """
{user}
worker_processes auto;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    client_body_temp_path {folder};
    proxy_temp_path {folder};
    fastcgi_temp_path {folder};
    uwsgi_temp_path {folder};
    scgi_temp_path {folder};
    server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
"""


class NginxMissingError(Exception):
    """There is no nginx to compare with."""


@dataclass(frozen=True, slots=True)
class ServerUnderTest:
    """A server that listens on a port of the loopback."""

    port: int
    pid: int
    token: str = ""

    def rss_mb(self) -> float:
        """The most memory that the process ever had resident, in MB."""
        status = Path(f"/proc/{self.pid}/status")
        if status.exists():
            peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
            if peak is not None:
                return int(peak[1]) * 1024 / 1e6
        return float(psutil.Process(self.pid).memory_info().rss / 1e6)

    def cpu_s(self) -> float:
        """CPU seconds used so far, with those of its children."""
        process = psutil.Process(self.pid)
        every = [process, *process.children(recursive=True)]
        return float(sum(sum(each.cpu_times()[:2]) for each in every))


@contextmanager
def site_server(folder: Path, model: Path, n_clients: int) -> Iterator[ServerUnderTest]:
    """`manage.py serve` on a free port, with a database of its own and a worker's token."""
    environment = {
        **os.environ,
        "DATABASE_URL": f"sqlite:///{folder / 'site.sqlite3'}",
        "KVASIR_MODEL": str(model),
        "KVASIR_RUN_DIR": str(folder / "run"),
        "KVASIR_SLICE_DOWNLOADS": str(n_clients),
    }
    manage = [sys.executable, "manage.py"]
    subprocess.run([*manage, "migrate", "-v", "0"], cwd=ROOT, env=environment, check=True)
    issue = [*manage, "issue_token", "--scope", "worker", "--name", "benchmark"]
    issued = subprocess.run(issue, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    process = subprocess.Popen(
        [*manage, "serve", "--port", "0"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        said = re.search(r"http://[^ ,]+:(\d+)", process.stdout.readline() if process.stdout else "")
        if said is None:
            raise RuntimeError("the site did not start")
        yield ServerUnderTest(int(said[1]), process.pid, issued.stdout.strip())
    finally:
        _end(process)


@contextmanager
def nginx_server(folder: Path) -> Iterator[ServerUnderTest]:
    """Nginx on a free port, serving the folder's files. Raises NginxMissingError."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise NginxMissingError("nginx is missing: install it (Debian: apt-get install nginx-light) and run this again")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    user = "user root;" if hasattr(os, "geteuid") and os.geteuid() == 0 else ""
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, user=user))
    process = subprocess.Popen([program, "-c", str(config), "-e", str(folder / "nginx.log")], stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield ServerUnderTest(port, process.pid)
    finally:
        _end(process)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
