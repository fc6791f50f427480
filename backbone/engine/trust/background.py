"""A thread for work that may wait: checks of answers, entry tests of workers. Its queue is bounded.

Tasks run in the order of their arrival. One that raises is logged and forgotten; the thread goes on.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

Task = Callable[[], None]


class Background:
    """Start it by making it; `close` it in the end. All methods may be called from any thread."""

    def __init__(self, name: str, max_waiting: int) -> None:
        self._tasks: queue.Queue[Task | None] = queue.Queue(max_waiting)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def offer(self, task: Task) -> bool:
        """Take a task unless too many wait; says whether it was taken."""
        try:
            self._tasks.put_nowait(task)
        except queue.Full:
            return False
        return True

    def join(self) -> None:
        """Wait until all that was taken is done."""
        self._tasks.join()

    def close(self, deadline_s: float = 10.0) -> None:
        """Do what waits, then end the thread; after the deadline it is left behind."""
        if self._thread.is_alive():
            try:
                self._tasks.put(None, timeout=deadline_s)
            except queue.Full:
                return
            self._thread.join(deadline_s)

    def _run(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                if task is None:
                    return
                task()
            except Exception:  # the loop's top: one task's failure must not end the others
                logger.exception("a background task failed")
            finally:
                self._tasks.task_done()
