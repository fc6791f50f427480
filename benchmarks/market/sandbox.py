"""Measure what `bench_market` runs against: a Redis, the site as a process with a model of the 122B shape, and HTTP
clients."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shape.load_model_file import ModelShape, write_sparse_model
from market.coverage.model_facts import ModelFacts, open_model
from market.nodes.tokens import TokenScope, issue
from tests.site.database import database_at

ROOT = Path(__file__).parents[2]
START_DEADLINE_S = 120.0
N_CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class Node:
    """A node that may ask."""

    node_id: str
    token: str


@dataclass(frozen=True, slots=True)
class Site:
    """The site's process."""

    port: int
    nodes: tuple[Node, ...]


def model_file(folder: Path, shape: ModelShape) -> tuple[Path, ModelFacts]:
    """A sparse model file and what the market sees of it."""
    path = folder / "model.gguf"
    write_sparse_model(path, shape)
    model = open_model(path)
    model.index.close()
    return path, model.facts


@contextmanager
def site_process(folder: Path, model: Path, redis_url: str, n_nodes: int) -> Iterator[Site]:
    """`manage.py serve` with this model and Redis, and nodes with tokens; stopped at the end."""
    with database_at(folder / "site.sqlite3") as database:
        issued = [issue(TokenScope.WORKER, f"node {number}") for number in range(n_nodes)]
    environment = os.environ | {
        "DATABASE_URL": database,
        "REDIS_URL": redis_url,
        "KVASIR_MODEL": str(model),
        "KVASIR_MARKET_ADDRESS_RATE": "10000000",
        "KVASIR_MARKET_ACCOUNT_RATE": "10000000",
        "KVASIR_VOLUNTEER_LEASE_S": "3600",
        "KVASIR_TARGET_REPLICAS": "100",
        "KVASIR_RUN_DIR": str(folder),
    }
    with (folder / "site.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "serve", "--port", "0"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        nodes = tuple(Node(token.public_id, token.text) for token in issued)
        yield Site(_port(folder / "site.log", process), nodes)
    finally:
        process.terminate()
        process.wait(30)


def requests_per_s(port: int, requests: Sequence[bytes]) -> float:
    """Send all over a few connections, each waiting for its answer, and return the rate. Raises when one is refused."""
    return asyncio.run(_send_all(port, requests))


def post(path: str, node: Node, body: dict[str, object]) -> bytes:
    """The bytes of a request."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {node.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def _send_all(port: int, requests: Sequence[bytes]) -> float:
    left = iter(requests)
    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(N_CONNECTIONS):
            group.create_task(_send_some(port, left))
    return len(requests) / (time.perf_counter() - begin)


async def _send_some(port: int, left: Iterator[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for request in left:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        body = await reader.readexactly(int(length[1]) if length is not None else 0)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head.splitlines()[0]!r}: {body[:300]!r}")
    writer.close()


def _port(log: Path, process: subprocess.Popen[bytes]) -> int:
    until = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < until and process.poll() is None:
        found = re.search(r"serving on http://[^:]+:(\d+)", log.read_text())
        if found is not None:
            return int(found[1])
        time.sleep(0.05)
    raise RuntimeError(f"the site did not start: {log.read_text()[-2000:]}")
