"""What an agent says on standard output: sentences and a progress bar for people, or one JSON line per event.

`agent` reports every event once, with both forms at hand. No event holds a token.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol, TextIO

from kvasir.worker.slices.progress import DownloadBar

PROGRESS_STEPS = 10  # events of one download, at most


class Report(Protocol):
    """Who hears what happens."""

    def say(self, event: str, text: str, **facts: Any) -> None:
        """One event: `text` for people (none when empty), `facts` for programs."""
        ...

    def progress(self, label: str, done: int, total: int) -> None:
        """Bytes of a download that are there."""
        ...


class TextReport:
    """For people."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._label = ""
        self._bar: DownloadBar | None = None
        self._stack = ExitStack()

    def say(self, event: str, text: str, **facts: Any) -> None:
        """Print the sentence; a bar that is there ends first."""
        del event, facts
        self._end_bar()
        if text:
            self._out.write(text + "\n")
            self._out.flush()

    def progress(self, label: str, done: int, total: int) -> None:
        """Move the bar, on a terminal."""
        if self._bar is None or label != self._label:
            self._end_bar()
            self._label, self._bar = label, self._stack.enter_context(DownloadBar(label))
        self._bar.report(done, total)

    def _end_bar(self) -> None:
        self._bar = None
        self._stack.close()


class JsonReport:
    """For programs."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._told: tuple[str, int] = ("", -1)

    def say(self, event: str, text: str, **facts: Any) -> None:
        """Write one line."""
        del text
        self._out.write(json.dumps({"event": event, **facts}) + "\n")
        self._out.flush()

    def progress(self, label: str, done: int, total: int) -> None:
        """An event for each tenth."""
        step = PROGRESS_STEPS * done // total if total else 0
        if (label, step) != self._told:
            self._told = (label, step)
            self.say("progress", "", range=label, done_bytes=done, total_bytes=total)


class Announcer:
    """Says events to a report; what repeats itself only when it is new."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._told: dict[str, str] = {}  # what was said last, by event

    def say(self, event: str, text: str, **facts: Any) -> None:
        """Say an event."""
        self._told.pop(event, None)
        self._report.say(event, text, **facts)

    def say_new(self, event: str, what: str, text: str, **facts: Any) -> None:
        """Say an event unless `what` is what was said of this event last."""
        if self._told.get(event) != what:
            self.say(event, text, **facts)
            self._told[event] = what

    def forget(self, event: str) -> None:
        """It is over: say it again when it comes back."""
        self._told.pop(event, None)


def report_for(is_json: bool, out: TextIO | None = None) -> Report:
    """The form that was asked for."""
    make: Callable[[TextIO | None], Report] = JsonReport if is_json else TextReport
    return make(out)
