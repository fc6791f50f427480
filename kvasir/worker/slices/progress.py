"""A progress bar of a download, in bytes that are really there: a resumed one starts where it was.

The agent passes `DownloadBar.report` to `SliceStore.obtain`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self, TextIO

from tqdm import tqdm


class DownloadBar:
    """Use it as a context manager; on something else than a terminal it writes nothing unless told to."""

    def __init__(self, label: str, file: TextIO | None = None, is_shown: bool | None = None) -> None:
        disable = None if is_shown is None else not is_shown  # None: tqdm looks whether it is a terminal
        self._bar = tqdm(desc=label, unit="B", unit_scale=True, unit_divisor=1024, file=file, disable=disable)

    def report(self, done: int, total: int) -> None:
        """Show how many bytes are there, of how many."""
        if self._bar.total is None:
            self._bar.initial = done  # bytes of an earlier run do not count into the speed
        self._bar.total = total
        self._bar.n = done
        self._bar.refresh() if done >= total else self._bar.update(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()
