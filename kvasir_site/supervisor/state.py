"""Files of a run directory: only one service at a time, and who runs now, for operators and scripts."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kvasir.errors import ConfigError


@contextmanager
def only_one(run_dir: Path) -> Iterator[None]:
    """Hold the run directory. Raises ConfigError when another service has it. A killed holder loses it at once."""
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / "service.lock"
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "stop it, or give this one a directory of its own (KVASIR_RUN_DIR)"
            raise ConfigError(f"a service already runs in {run_dir}: {hint}") from None
        yield


def write_state(path: Path, url: str, pids: Mapping[str, int]) -> None:
    """Say where the service is and which processes it has. Readers never see half of it."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"url": url, "pids": dict(pids)}) + "\n")
    new.replace(path)
