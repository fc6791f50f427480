"""A model of real shape and one worker process that computes its experts over a relay."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.edge_pool import EdgePool
from benchmarks.shape.model import QUICK as QUICK_SHAPE
from benchmarks.shape.model import RealShape
from kvasir.experts import ExpertRange
from kvasir.slicing.slices import plan_slice, write_slice

START_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The model's shape, decode steps by batch, and rounds."""

    shape: RealShape
    n_steps: dict[int, int]
    n_rounds: int


FULL = Plan(replace(RealShape(), n_expert=64), {1: 24, 8: 12, 64: 6}, n_rounds=7)
QUICK = Plan(QUICK_SHAPE, {1: 3, 8: 3, 64: 2}, n_rounds=1)


@contextmanager
def joined_worker(loaded: LoadedModel, folder: Path, url: str, token: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process with one thread that holds every expert and joins the relay."""
    ranges = [ExpertRange(layer, 0, loaded.card.n_expert) for layer in loaded.card.moe_layers]
    write_slice(plan_slice(loaded.index, loaded.card, ranges), folder / "all.gguf")
    token_file = folder / "token.txt"
    token_file.write_text(token)
    command = [sys.executable, "-m", "kvasir.worker", "join", url, "--token-file", str(token_file)]
    with (folder / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--slice", str(folder / "all.gguf"), "--threads", "1"], stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_a_worker(edges: EdgePool) -> None:
    """Wait until one has joined. Raises RuntimeError after START_DEADLINE_S."""
    end = time.monotonic() + START_DEADLINE_S
    while not edges.live():
        if time.monotonic() > end:
            raise RuntimeError(f"no worker has joined within {START_DEADLINE_S:g} s")
        time.sleep(0.05)
