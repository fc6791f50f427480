"""Events of an agent on standard output: sentences and a progress bar for people, or one JSON line per event.

`agent` passes both forms of every event. No event holds a token.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from tqdm import tqdm

from kvasir.byte_sizes import format_size
from kvasir.experts import ExpertRange
from kvasir.worker.agent.market_client import Assigned, MarketRefusedError

PROGRESS_STEPS = 10  # events of one download, at most


class Report(Protocol):
    """Receives events and progress."""

    def say(self, event: str, text: str, **facts: Any) -> None:
        """Report one event: `text` for people (nothing if empty), `facts` for programs."""
        ...

    def progress(self, label: str, done: int, total: int) -> None:
        """Report how many bytes of a download are on the disk."""
        ...


class DownloadBar:
    """A progress bar in bytes that are on the disk; a resumed download starts where it was.

    A context manager. Without `is_shown` it draws on a terminal only.
    """

    def __init__(self, label: str, file: TextIO | None = None, is_shown: bool | None = None) -> None:
        disable = None if is_shown is None else not is_shown  # None: tqdm checks for a terminal
        self._bar = tqdm(desc=label, unit="B", unit_scale=True, unit_divisor=1024, file=file, disable=disable)

    def report(self, done: int, total: int) -> None:
        """Show `done` of `total` bytes."""
        if self._bar.total is None:
            self._bar.initial = done  # bytes of an earlier run do not count towards the speed
        self._bar.total = total
        self._bar.n = done
        self._bar.refresh() if done >= total else self._bar.update(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()


class TextReport:
    """A report for people."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._label = ""
        self._bar: DownloadBar | None = None
        self._stack = ExitStack()

    def say(self, event: str, text: str, **facts: Any) -> None:
        """Print the sentence, after closing an open bar."""
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
    """A report for programs."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._last_step: tuple[str, int] = ("", -1)

    def say(self, event: str, text: str, **facts: Any) -> None:
        """Write one line."""
        del text
        self._out.write(json.dumps({"event": event, **facts}) + "\n")
        self._out.flush()

    def progress(self, label: str, done: int, total: int) -> None:
        """Write an event for each tenth."""
        step = PROGRESS_STEPS * done // total if total else 0
        if (label, step) != self._last_step:
            self._last_step = (label, step)
            self.say("progress", "", range=label, done_bytes=done, total_bytes=total)


class Announcer:
    """Passes events to a report, and drops repeated ones."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._last: dict[str, str] = {}  # the last content, by event

    def say(self, event: str, text: str, **facts: Any) -> None:
        """Report an event."""
        self._last.pop(event, None)
        self._report.say(event, text, **facts)

    def say_new(self, event: str, content: str, text: str, **facts: Any) -> None:
        """Report an event unless its last content was the same."""
        if self._last.get(event) != content:
            self.say(event, text, **facts)
            self._last[event] = content

    def forget(self, event: str) -> None:
        """Report the event again when it next occurs: its cause is over."""
        self._last.pop(event, None)


def report_for(is_json: bool, out: TextIO | None = None) -> Report:
    """Return the report that --json selects."""
    make: Callable[[TextIO | None], Report] = JsonReport if is_json else TextReport
    return make(out)


def range_text(item: ExpertRange) -> str:
    """Describe one range with its last expert included."""
    if item.n_experts == 1:
        return f"layer {item.layer}, expert {item.start}"
    return f"layer {item.layer}, experts {item.start} to {item.stop - 1}"


def ranges_facts(ranges: Iterable[ExpertRange]) -> list[list[int]]:
    """Return ranges as [layer, start, stop]."""
    return [[item.layer, item.start, item.stop] for item in ranges]


def assigned_text(answer: Assigned) -> str:
    """Describe an assignment."""
    return f"assigned: {range_text(answer.range)} of {answer.model.name}, {format_size(answer.n_bytes)}"


def assigned_facts(answer: Assigned) -> dict[str, Any]:
    """Return an assignment's facts for programs."""
    return {
        "model": answer.model.name,
        "range": ranges_facts([answer.range])[0],
        "bytes": answer.n_bytes,
        "scarcity": answer.scarcity,
        "rate_microcredits_per_row": answer.rate_microcredits,
    }


def refusal_text(error: MarketRefusedError, token_path: Path) -> str:
    """Explain a refusal and what to do about it."""
    if error.status == 401:
        return (
            f"the site does not accept this node's token: {error}. If it expired or was revoked, delete {token_path} "
            "and start again: the worker then registers as a new node (with --invite CODE if the site requires it)"
        )
    if error.code == "invite_needed":
        return f"the site registers nodes by invitation only: {error}. Ask its operator, then use --invite CODE"
    if error.code == "registration_closed":
        return f"the site registers no nodes: {error}. Ask its operator for a token, then use --token-file FILE"
    return f"the site refuses this worker: {error}"
