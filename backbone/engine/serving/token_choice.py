"""The choice of a step's tokens: from rows of logits to each sequence's next tokens, with drafts verified.

The engine awaits it after each forward. A choice changes only the histories and texts of its own sequences, so a long
one may run on another thread while the event loop steps other groups. Slots, queues and events are the engine's, on its
loop.
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

WORTH_S = 0.025  # of CPU: for less, handing over to another thread costs more than it gains
AVERAGE_WEIGHT = 1 / 8  # of a new choice in the moving average


class Choice(NamedTuple):
    """The progress that a token made; None if no token could be chosen, with the reason in `error`."""

    progress: Progress | None
    error: Exception | None = None


def choose_tokens(chunks: Chunks[Chunk], logits: Logits, n_ctx: int) -> list[list[Choice]]:
    """Choose the next tokens of each chunk's sequence; none for a sequence that has ended.

    `logits` are f32 [rows, n_vocab]: for each chunk those of its last row and of each draft, in order.
    """
    chosen, row = [], 0
    for chunk in chunks:
        n_rows = 1 + len(chunk.drafts)
        has_ended = chunk.sequence.finish_reason is not None
        chosen.append([] if has_ended else _verify(chunk, logits[row : row + n_rows], n_ctx))
        row += n_rows
    return chosen


def _verify(chunk: Chunk, logits: Logits, n_ctx: int) -> list[Choice]:
    """Choose tokens while each equals the draft in its place, for which the next row was computed.

    The last one chosen differs from its draft, has none, or ends the sequence.
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
    except Exception as error:  # of any kind: the other sequences of the step go on
        return Choice(None, error)


class TokenChooser:
    """Chooses on the loop's thread, or on another if that would delay the loop. Several engines may share it."""

    def __init__(
        self,
        executor: Executor | None = None,
        *,
        worth_s: float = WORTH_S,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """An `executor` makes the choices that, judged by the last ones, take `worth_s` or more; `close` ends it.

        The clock reads the CPU seconds of the choosing thread, and only decides which thread chooses.
        """
        self._executor = executor
        self._worth_s = worth_s
        self._clock = clock
        self._row_s: float | None = None  # moving average of the seconds of a row

    async def choose(self, chunks: Chunks[Chunk], logits: Logits, n_ctx: int) -> list[list[Choice]]:
        """Run `choose_tokens`, here or on the executor.

        Until it returns, nothing else may read or change the sequences, except to set `finish_reason`. After a cancel
        that holds for good.
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
        """End the executor, after the choice that it is making."""
        if self._executor is not None:
            self._executor.shutdown()

    def _timed(self, chunks: Chunks[Chunk], logits: Logits, n_ctx: int) -> tuple[list[list[Choice]], float]:
        began = self._clock()
        chosen = choose_tokens(chunks, logits, n_ctx)
        return chosen, self._clock() - began
