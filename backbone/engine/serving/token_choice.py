"""The choice of a step's tokens: from rows of logits to what each sequence says next, drafts verified.

The engine awaits it after each forward. A choice touches its own sequences' histories and texts and nothing else, so a
long one may be made on another thread, while the event loop goes on with other groups. What it means for slots,
queues and events is the engine's to say, on its loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from collections.abc import Sequence as Chunks
from concurrent.futures import Executor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backbone.engine.serving.scheduler import Chunk
from backbone.engine.serving.sequence import Progress, Sequence

Logits = NDArray[np.float32]

WORTH_S = 0.025  # of CPU: less is done before another thread would pay for asking it and coming back
AVERAGE_WEIGHT = 1 / 8  # of a new choice in the moving average


class Choice(NamedTuple):
    """What a token did to its sequence; None where none could be chosen, and `error` is then why."""

    progress: Progress | None
    error: Exception | None = None


def choose_tokens(chunks: Chunks[Chunk], logits: Logits, n_ctx: int) -> list[list[Choice]]:
    """The next tokens of each chunk's sequence; none where it has ended.

    `logits` are f32 [rows, n_vocab]: of each chunk its last row's and each draft's, in order.
    """
    chosen, row = [], 0
    for chunk in chunks:
        n_rows = 1 + len(chunk.drafts)
        has_ended = chunk.sequence.finish_reason is not None
        chosen.append([] if has_ended else _verify(chunk, logits[row : row + n_rows], n_ctx))
        row += n_rows
    return chosen


def _verify(chunk: Chunk, logits: Logits, n_ctx: int) -> list[Choice]:
    """Choose tokens as long as each is what was drafted in its place: those are what the next row was computed for.

    The last of them is the one that was not drafted, or that ends the sequence.
    """
    choices = []
    for row, draft in zip(logits, (*chunk.drafts, None), strict=True):
        choice = _choose(chunk.sequence, row, n_ctx)
        choices.append(choice)
        progress = choice.progress
        if progress is None or progress.finish_reason is not None or progress.sampled.token != draft:
            break
    return choices


def _choose(sequence: Sequence, logits: Logits, n_ctx: int) -> Choice:
    try:
        return Choice(sequence.advance(logits, n_ctx))
    except Exception as error:  # whatever it was, the other sequences of the step go on
        return Choice(None, error)


class TokenChooser:
    """Chooses on the loop's thread, or, where that would hold it up, on another. Any number of engines may share it."""

    def __init__(
        self,
        executor: Executor | None = None,
        *,
        worth_s: float = WORTH_S,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """An `executor` makes the choices that will take `worth_s` or more, to go by the last ones; `close` ends it.

        The clock reads the seconds of the thread that chooses, and only decides where that is.
        """
        self._executor = executor
        self._worth_s = worth_s
        self._clock = clock
        self._row_s: float | None = None  # what a row takes, of late

    async def choose(self, chunks: Chunks[Chunk], logits: Logits, n_ctx: int) -> list[list[Choice]]:
        """`choose_tokens`. Until it is done, and after a cancel for good, nobody else may change or read the sequences.

        But for `finish_reason`, which may be set at any time.
        """
        expected_s = len(logits) * (self._row_s or 0.0)
        if self._executor is None or expected_s < self._worth_s:
            chosen, seconds = self._timed(chunks, logits, n_ctx)
        else:
            loop = asyncio.get_running_loop()
            chosen, seconds = await loop.run_in_executor(self._executor, self._timed, chunks, logits, n_ctx)
        if len(logits):
            row_s = seconds / len(logits)
            self._row_s = row_s if self._row_s is None else self._row_s + AVERAGE_WEIGHT * (row_s - self._row_s)
        return chosen

    def close(self) -> None:
        """Wait for a choice that is being made, which nobody needs any more."""
        if self._executor is not None:
            self._executor.shutdown()

    def _timed(self, chunks: Chunks[Chunk], logits: Logits, n_ctx: int) -> tuple[list[list[Choice]], float]:
        began = self._clock()
        chosen = choose_tokens(chunks, logits, n_ctx)
        return chosen, self._clock() - began
