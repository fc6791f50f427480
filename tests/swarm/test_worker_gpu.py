"""A worker that computes on a GPU, as a real process: it says so, and gives the bits of this process's CPU.

The GPU is Mesa's lavapipe, which KVASIR_SOFTWARE_GPU allows.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvasir.worker.serving.holdings import Holdings, open_holdings
from tests.swarm.test_worker_process import Work, connect, slice_path
from tests.swarm.worker_process import DEADLINE_S, ROOT, WorkerProcess, worker_process

__all__ = ["slice_path"]  # a fixture


@pytest.fixture(scope="module")
def held(slice_path: Path) -> Holdings:
    return open_holdings(slice_path, "kx1", 1)


@pytest.fixture(scope="module")
def worker(slice_path: Path) -> Iterator[WorkerProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVASIR_SOFTWARE_GPU", "1")
        with worker_process(slice_path, "--backend", "gpu", "--gpu-memory", "64MiB", "--threads", "1") as started:
            yield started


def test_a_backbone_cannot_tell_it_from_a_cpu(worker: WorkerProcess, held: Holdings) -> None:
    async def test() -> None:
        edge = await connect(worker, held)
        works = [Work(held, seed, n_rows) for seed, n_rows in enumerate((1, 2, 33, 200))]
        await asyncio.gather(*(work.check(edge) for work in works))
        await edge.close()

    asyncio.run(test())


def test_it_says_what_computes(worker: WorkerProcess, held: Holdings) -> None:
    assert worker.listening["isa"].startswith("gpu llvmpipe")
    assert worker.listening["kernel_fingerprint"] == held.kernel.fingerprint
    assert "given up" not in worker.log()


def test_without_a_gpu_it_does_not_start_and_says_why(slice_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "KVASIR_SOFTWARE_GPU"}
    environment |= {"PYTHONPATH": str(ROOT), "VK_DRIVER_FILES": os.devnull, "VK_ICD_FILENAMES": os.devnull}
    command = [sys.executable, "-m", "kvasir.worker", "serve", "--slice", str(slice_path), "--backend", "gpu"]
    done = subprocess.run(
        command, env=environment, cwd=slice_path.parent, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 2
    assert "kvasir-worker: --backend gpu: there is no GPU" in done.stderr
