"""The memory of a worker process that serves a slice, for `bench_load`.

Starts `python -m kvasir.worker`, asks it over a real edge for every expert that it holds, and reads /proc.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvasir.edge.tcp_edge import TcpEdge
from kvasir.kernels.registry import kernel_for
from kvasir.slicing.slice_file import SliceFile
from kvasir.wire.frames import Hello, Role
from kvasir.wire.split import ExpertCall

N_ROWS = 8
DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """Resident bytes of a process: all of it, what is its own, and what are pages of files."""

    total: int
    anonymous: int
    file: int


def worker_memory(slice_path: Path) -> WorkerMemory:
    """Memory of a worker after it has computed rows with every expert of the slice."""
    with _worker(slice_path) as (process, port):
        asyncio.run(_use_every_expert(slice_path, port))
        status = Path(f"/proc/{process.pid}/status").read_text()
    kib = {key: int(value) for key, value in re.findall(r"^(\w+):\s+(\d+) kB$", status, re.MULTILINE)}
    return WorkerMemory(kib["VmRSS"] << 10, kib["RssAnon"] << 10, kib["RssFile"] << 10)


@contextmanager
def _worker(slice_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "kvasir.worker", "serve", "--slice", str(slice_path)]
    process = subprocess.Popen([*command, "--listen", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the worker ended before it listened; its reason is above")
        yield process, int(json.loads(line)["port"])
    finally:
        process.terminate()
        process.communicate()


async def _use_every_expert(slice_path: Path, port: int) -> None:
    with SliceFile.open(slice_path) as slice_file:
        kernel = kernel_for(slice_file.layers.values())
        hello = Hello(Role.BACKBONE, slice_file.model_fingerprint, kernel.fingerprint, kernel.name)
        edge = await TcpEdge.connect("127.0.0.1", port, hello, deadline_s=DEADLINE_S)
        rows = np.random.default_rng(0).standard_normal((N_ROWS, slice_file.facts.d_model), dtype=np.float32)
        encoded = kernel.encode_rows(rows)
        for layer, experts in slice_file.layers.items():
            pair_rows = np.repeat(np.arange(N_ROWS, dtype=np.int32), experts.n_expert)
            pair_ids = np.tile(np.arange(experts.n_expert, dtype=np.int32), N_ROWS)
            call = ExpertCall(layer, encoded, kernel.row_format, pair_rows, pair_ids)
            outputs = await edge.dispatch(call, DEADLINE_S)
            if outputs.shape != (len(pair_ids), slice_file.facts.d_model) or not np.isfinite(outputs).all():
                raise RuntimeError(f"the worker's answer for layer {layer} is not finite rows of the model's width")
        await edge.close()
