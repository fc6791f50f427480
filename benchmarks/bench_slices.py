"""Measure how fast the site serves slices, against nginx with the same bytes of the same file.

`python -m benchmarks.bench_slices [--json] [--quick]`. Eight clients fetch 100 MB each, all at once, each another
part: from the site as a Range of a slice (through token, plan and relay's server), from nginx as a Range of the model
file. Both have the file in the page cache and send it with sendfile over the loopback, to the same client program,
which drops the bytes; it takes its share of the cores too. Runs alternate; figures are medians over runs.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import describe_commit, describe_machine
from benchmarks.serve.slice_servers import NginxMissingError, ServerUnderTest, nginx_server, site_server
from benchmarks.shape.load_model_file import ModelShape, fill_experts, write_sparse_model
from kvasir.experts import ExpertRange
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.model_card import ModelCard

MB = 1_000_000
N_CLIENTS = 8
RECEIVE_BYTES = 1 << 20
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is fetched: `n_bytes` each, from paths of the site, or from places of the model file."""

    shape: ModelShape
    n_bytes: int
    n_experts: int  # of each client's slice

    @property
    def ranges(self) -> list[ExpertRange]:
        per_layer = self.shape.n_expert // self.n_experts
        return [
            ExpertRange(
                number // per_layer, number % per_layer * self.n_experts, (number % per_layer + 1) * self.n_experts
            )
            for number in range(N_CLIENTS)
        ]


FULL = Load(ModelShape(n_layer=2, n_mtp_layer=0, n_expert=76, n_vocab=4_000), 100 * MB, 19)
QUICK = Load(ModelShape(n_layer=2, n_mtp_layer=0, n_expert=16, d_model=512, d_ff=256, n_vocab=4_000), MB // 2, 4)


@dataclass(frozen=True, slots=True)
class Request:
    """One client's request."""

    path: str
    token: str
    start: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Megabytes a second, of all clients together, and CPU seconds for a GB; run by run."""

    site: list[float]
    nginx: list[float]
    site_cpu: float
    nginx_cpu: float
    rss_before_mb: float  # nothing served yet
    rss_mb: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a small file: a smoke run whose figures mean nothing")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="kvasir-bench-") as folder:
            figures = measure(Path(folder), QUICK if options.quick else FULL, n_runs=2 if options.quick else 7)
    except NginxMissingError as error:
        sys.exit(str(error))
    print(json.dumps(as_keys(figures)) if options.json else as_table(figures))


def measure(folder: Path, load: Load, n_runs: int) -> Figures:
    """Make the model in `folder`, start both servers and let them take turns."""
    model = folder / "model.gguf"
    write_sparse_model(model, load.shape)
    fill_experts(model, tuple(load.ranges), load.shape.n_expert)
    with GGUFIndex.open(model) as index:
        fingerprint = ModelCard.from_index(index).fingerprint
    with site_server(folder, model, N_CLIENTS) as site, nginx_server(folder) as nginx:
        rss_before_mb = site.rss_mb()
        from_site = [
            Request(f"/api/slices/{fingerprint}?experts={r.layer}:{r.start}-{r.stop}", site.token, 0, load.n_bytes)
            for r in load.ranges
        ]
        step = (model.stat().st_size - load.n_bytes) // N_CLIENTS
        from_nginx = [Request("/model.gguf", "", number * step, load.n_bytes) for number in range(N_CLIENTS)]
        run(site, from_site)  # into the page cache, and the site has planned
        run(nginx, from_nginx)
        rates: dict[int, list[float]] = {site.port: [], nginx.port: []}
        cpu = {site.port: -site.cpu_s(), nginx.port: -nginx.cpu_s()}
        for _ in range(n_runs):
            rates[site.port].append(run(site, from_site))
            rates[nginx.port].append(run(nginx, from_nginx))
        n_gb = n_runs * N_CLIENTS * load.n_bytes / 1e9
        return Figures(
            rates[site.port],
            rates[nginx.port],
            (cpu[site.port] + site.cpu_s()) / n_gb,
            (cpu[nginx.port] + nginx.cpu_s()) / n_gb,
            rss_before_mb,
            site.rss_mb(),
        )


def run(server: ServerUnderTest, requests: list[Request]) -> float:
    """All requests at once; megabytes a second from the first byte asked to the last one received."""
    with ThreadPoolExecutor(len(requests)) as clients:
        started = time.perf_counter()
        received = sum(clients.map(lambda request: fetch(server.port, request), requests))
        return received / MB / (time.perf_counter() - started)


def fetch(port: int, request: Request) -> int:
    """Receive one range and drop it. Raises RuntimeError when something else than the range comes."""
    head = (
        f"GET {request.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Authorization: Bearer {request.token}\r\n"
        f"Range: bytes={request.start}-{request.start + request.n_bytes - 1}\r\n\r\n"
    )
    buffer = bytearray(RECEIVE_BYTES)
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
        connection.sendall(head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(4096)
        answer_head, _, body = answer.partition(b"\r\n\r\n")
        received = len(body)
        while received < request.n_bytes and (n_bytes := connection.recv_into(buffer)):
            received += n_bytes
    if b" 206 " not in answer_head.splitlines()[0] or received != request.n_bytes:
        raise RuntimeError(f"{request.path}: {received} bytes came after {answer_head[:100]!r}")
    return received


def as_keys(figures: Figures) -> dict[str, object]:
    """The figures under the names that they are published with."""
    return {
        "mb_s": round(statistics.median(figures.site), 1),
        "ratio_vs_nginx": round(ratio(figures), 3),
        "rss_mb": round(figures.rss_mb, 1),
        "machine": describe_machine(),
        "commit": describe_commit(),
    }


def ratio(figures: Figures) -> float:
    """The site's speed over nginx's, run against the run beside it."""
    return statistics.median(site / nginx for site, nginx in zip(figures.site, figures.nginx, strict=True))


def as_table(figures: Figures) -> str:
    """The figures for people."""
    rows = [
        ("mb_s", f"{statistics.median(figures.site):.0f} MB/s to {N_CLIENTS} clients"),
        ("", f"(nginx: {statistics.median(figures.nginx):.0f} MB/s)"),
        ("ratio_vs_nginx", f"{ratio(figures):.2f}"),
        ("CPU of the server", f"{figures.site_cpu:.2f} s for a GB (nginx: {figures.nginx_cpu:.2f} s)"),
        (
            "rss_mb",
            f"{figures.rss_mb:.1f} MB, at most, of the whole site process (before: {figures.rss_before_mb:.1f} MB)",
        ),
        ("machine", describe_machine()),
    ]
    return "\n".join(f"{label:<20} {text}" for label, text in rows)


if __name__ == "__main__":
    main()
