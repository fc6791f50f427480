"""A background thread with a bounded queue, for checks of answers, entry tests of workers and the like.

Tasks run in the order of their arrival. If one raises, the error is logged and the thread goes on.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

Task = Callable[[], None]


class Background:
    """A thread that runs from construction until `close`. All methods may be called from any thread."""

    def __init__(self, name: str, max_waiting: int) -> None:
        self._tasks: queue.Queue[Task | None] = queue.Queue(max_waiting)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def offer(self, task: Task) -> bool:
        """Queue a task unless the queue is full; return whether it was queued."""
        try:
            self._tasks.put_nowait(task)
        except queue.Full:
            return False
        return True

    def join(self) -> None:
        """Wait until all queued tasks are done."""
        self._tasks.join()

    def close(self, deadline_s: float = 10.0) -> None:
        """Finish the queued tasks, then end the thread; abandon it after the deadline."""
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
