"""A web process with the API, as `manage.py serve` starts it, with keys of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backbone.api.keys.store import KeyScope, issue
from tests.site.database import database_at
from tests.swarm.redis_fixture import RedisServer

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class WebProcess:
    """It runs at `url`. `slow_key` may ask once a minute."""

    url: str
    key: str
    slow_key: str
    metrics_key: str
    log: Path


@contextmanager
def web_process(redis: RedisServer, directory: Path, **environment: str) -> Iterator[WebProcess]:
    """Start one on a free port; stop it at the end."""
    log = directory / "web.log"
    with database_at(directory / "web.sqlite3") as database:
        keys = (
            issue([KeyScope.GENERATE], "test", per_minute=100_000).text,
            issue([KeyScope.GENERATE], "slow", per_minute=1).text,
            issue([KeyScope.METRICS], "metrics").text,
        )
    limits = {"KVASIR_KEY_RATE": "100000", "KVASIR_ADDRESS_RATE": "100000"}
    with log.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "serve", "--port", "0"],
            cwd=ROOT, env={**os.environ, **limits, "DATABASE_URL": database, "REDIS_URL": redis.url, **environment},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sink, text=True, start_new_session=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        said = re.search(r"http://[^\s,]+", process.stdout.readline())
        assert said is not None, log.read_text()
        yield WebProcess(said[0], *keys, log)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
