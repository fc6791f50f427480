"""An event loop whose clock is the CPU time of its own thread, plus the idle time that it skips.

Emulations run on it: waiting takes no time, other programs on the machine are not counted, and what stands for work
elsewhere is left out by `free`. Deadlines, measurements and averages that read the loop's clock are then those of a
backbone that has one core for itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class CpuLoop(asyncio.SelectorEventLoop):
    """Everything must happen on its thread: a thread beside it would compute for nothing."""

    def __init__(self) -> None:
        self._began_s = time.thread_time()
        self._free_s = 0.0
        self._skipped_s = 0.0
        super().__init__()
        self._real_select = self._selector.select  # type: ignore[attr-defined]
        self._selector.select = self._select  # type: ignore[attr-defined]

    @property
    def busy_s(self) -> float:
        """CPU seconds so far, those that were free left out."""
        return time.thread_time() - self._began_s - self._free_s

    def time(self) -> float:
        """Seconds since the start: busy ones and skipped ones."""
        return self.busy_s + self._skipped_s

    @contextmanager
    def free(self) -> Iterator[None]:
        """Return what is done inside takes no time: it stands for work that others do."""
        began = time.thread_time()
        try:
            yield
        finally:
            self._free_s += time.thread_time() - began

    def _select(self, timeout: float | None) -> Any:
        if timeout is None:
            raise RuntimeError("everything waits and no timer is set: the emulation would hang")
        self._skipped_s += timeout
        return self._real_select(0)
