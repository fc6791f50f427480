"""The operator's terminal: whole lines from several threads, and text that grows while they come."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Terminal:
    """`write` gets text and must flush. A line never lands in the middle of streamed text: it starts a new one."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._is_in_line = False

    def say(self, text: str) -> None:
        """A line, or several."""
        with self._lock:
            self._write(("\n" if self._is_in_line else "") + text + "\n")
            self._is_in_line = False

    def stream(self, text: str) -> None:
        """A piece of a text that goes on."""
        if text:
            with self._lock:
                self._write(text)
                self._is_in_line = not text.endswith("\n")
