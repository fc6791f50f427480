"""What one backbone process serves, and the command that starts one. Parsed by the site's settings, read at the start.

The process is a Celery worker with one engine: `celery -A kvasir_site worker --pool=threads -c N -Q backbone`, where N
is the number of requests that may run or wait in it; `celery_command` returns it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from backbone.stream.keys import QUEUE


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """All from the environment (docs/operate/deploy.md). Times are in seconds."""

    model: Path
    model_name: str  # what clients call it
    n_slot: int = 64
    kv_budget_bytes: int | None = None  # fewer slots when they would take more
    n_ctx: int | None = None  # None: the model's, at most 4096
    max_waiting: int = 64
    step_rows: int = 256
    n_groups: int | None = None  # micro-batches in flight; None: by what is measured
    n_threads: int | None = None
    dense: str = "kx1"
    kernel: str = "auto"
    reply: str = "f32"
    workers: tuple[str, ...] = ()  # HOST:PORT of workers that listen
    relays: tuple[str, ...] = ()  # addresses; with a token and none here, those that are announced in Redis
    worker_deadline_s: float = 10.0
    max_deadline_s: float = 86_400.0
    stop_s: float = 20.0  # how long running requests may finish when the process is asked to stop
    stall_s: float = 300.0  # a step that takes longer means that the engine hangs
    token: str = field(default="", repr=False)  # this node's, for relays
    token_file: Path | None = None  # or the file that holds it
    strict: bool = False  # every worker's answer is confirmed before it is used
    receipts_dir: Path = Path("run/receipts")  # where receipts wait for SQL
    sums_dir: Path = Path("run/sums")  # scales of models that are answered in sums
    speculate: str = "off"  # or auto: tokens that text or model suggest are computed ahead where it pays
    draft_tokens: int = 8  # at most, at once
    n_traced_tokens: int = 64  # last tokens of an answer in its trace
    hot_bytes: int = 0  # of busy experts that the backbone computes itself while the others' rows travel
    device: str = "cpu"  # of the dense path
    gpu_expert_bytes: int = 0  # memory of a GPU for experts that are computed here

    @property
    def n_tasks(self) -> int:
        """Requests that one process holds, running and waiting: its Celery concurrency."""
        return self.n_slot + self.max_waiting


def celery_command(settings: ServiceSettings, name: str = "backbone") -> list[str]:
    """The command line of one backbone process; `name` tells several on one machine apart."""
    return [
        *(sys.executable, "-m", "celery", "-A", "kvasir_site", "worker"),
        *("--pool=threads", "-c", str(settings.n_tasks), "-Q", QUEUE),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),  # the backbone has a lease of its own
        *("--loglevel=INFO", "-n", f"{name}@%h"),
    ]
