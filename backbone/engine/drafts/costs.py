"""What one more row costs a step, from the steps so far: a line through (rows, seconds), the old forgotten.

The engine feeds it and asks it how far drafts pay. Rows of other sequences share a step's fixed costs (waiting for the
network, reading the weights), so one more row is cheap beside few and dear beside many. Pure: times come from outside.
"""

from __future__ import annotations

_FORGET = 0.98  # of the steps that are known, at each step
_FIRST_ROWS = 8.0  # a step's fixed cost in rows, before anything is known
_MOST_ROWS = 1000.0
_DOUBT = 4.0  # how much variance of the rows what was known before counts for, in rows²
_NO_TIME_S = 1e-9  # a clock that stands still says nothing
_HOPE = 0.5  # by how much a cost that is in doubt is taken for less
_LEARN = 0.1  # of what the last steps say, at each step
_FIRST_SHARE = 0.1  # of a step, before anything is known
_TRUSTED_FOR = 256  # questions without a new time: then it is found out again


class RowCost:
    """Moving moments of steps; `add` each, ask `relative`."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._rows = self._seconds = 0.0  # means
        self._variance = self._covariance = 0.0  # sums of weighted products of differences from the means
        self._fixed_rows = _FIRST_ROWS  # kept while all steps are alike, which say nothing of it

    def add(self, n_rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        before = self._weight * _FORGET
        self._weight = before + 1
        off_rows, off_seconds = n_rows - self._rows, seconds - self._seconds
        self._rows += off_rows / self._weight
        self._seconds += off_seconds / self._weight
        share = before / self._weight
        self._variance = self._variance * _FORGET + share * off_rows * off_rows
        self._covariance = self._covariance * _FORGET + share * off_rows * off_seconds
        if self._seconds > _NO_TIME_S:
            self._fixed_rows += _LEARN * (self._found() - self._fixed_rows)

    def relative(self, n_tokens: int) -> float:
        """One more row's cost in a step that makes `n_tokens` tokens, where such a step costs 1 for each of them.

        From nearly 0, when the step is all waiting, to 1, when it is all rows. Steps that are alike say nothing of it:
        then it is down to half of what was known, so that drafts are tried, which make the next steps differ.
        """
        n = max(n_tokens, 1)
        variance = self._variance / self._weight if self._weight else 0.0
        doubt = _DOUBT / (variance + _DOUBT)
        return (1 - _HOPE * doubt) * n / (self._fixed_rows + n)

    def seconds(self, n_rows: int) -> float | None:
        """How long a step of so many rows takes; None before anything is known."""
        if self._seconds <= _NO_TIME_S:
            return None
        return self._seconds * (self._fixed_rows + n_rows) / (self._fixed_rows + self._rows)

    def _found(self) -> float:
        """A step's fixed cost in rows as the last steps have it, drawn to what was known by how alike they are."""
        known = self._seconds / (self._rows + self._fixed_rows)
        variance = self._variance / self._weight
        row = (self._covariance / self._weight + known * _DOUBT) / (variance + _DOUBT)
        least, most = self._seconds / (self._rows + _MOST_ROWS), self._seconds / self._rows
        return self._seconds / min(max(row, least), most) - self._rows


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
