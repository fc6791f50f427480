"""What a guess of the MTP head costs, from those so far: their seconds beside those of a step.

`draft_sources` feeds it and asks it whether the head pays. Reading the head's weights is shared by all sequences that
it guesses for at once, as a step is. Pure: times come from outside.
"""

from __future__ import annotations

from backbone.engine.drafts.row_cost import RowCost

_FIRST_SHARE = 0.1  # of a step, before anything is known
_TRUSTED_FOR = 256  # questions without a new time: then it is found out again


class HeadCost:
    """Moving moments of the head's forwards; `add` each, ask `relative`."""

    def __init__(self) -> None:
        self._line: RowCost | None = None  # None until the first time has passed: that one reads weights from a disk
        self._n_asked = 0

    def add(self, n_rows: int, seconds: float) -> None:
        """One guess for each of so many sequences took so long."""
        self._n_asked = 0
        if self._line is None:
            self._line = RowCost()
        else:
            self._line.add(n_rows, seconds)

    def relative(self, step: RowCost, n_tokens: int, n_rows: int) -> float:
        """The cost of one guess for each of `n_rows` sequences, for one of them.

        A token costs 1 in a `step` without drafts that makes `n_tokens`.
        """
        self._n_asked += 1
        if self._n_asked > _TRUSTED_FOR and self._line is not None:
            self._line = RowCost()
        head_s = self._line.seconds(n_rows) if self._line is not None else None
        step_s = step.seconds(n_tokens)
        share = head_s / step_s if head_s is not None and step_s is not None else _FIRST_SHARE
        return share * n_tokens / n_rows
