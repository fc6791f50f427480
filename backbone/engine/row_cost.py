"""What one more row costs a step, from the steps so far: a line through (rows, seconds), the old forgotten.

The engine feeds it and asks it how far drafts pay. Rows of other sequences share a step's fixed costs (waiting for the
network, reading the weights), so one more row is cheap beside few and dear beside many. Pure: times come from outside.
"""

from __future__ import annotations

_FORGET = 0.98  # of what is known, at each step
# Before steps of different sizes were seen, a step is thought to cost as much as this many rows, and its rows.
_PRIOR_ROWS = 8.0
_PRIOR_VARIANCE = 4.0  # how much variance of the rows the prior counts for, in rows²


class RowCost:
    """Moving moments of steps; `add` each, ask `relative`."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._rows = self._seconds = 0.0  # means
        self._variance = self._covariance = 0.0  # sums of weighted products of differences from the means

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

    def relative(self, n_tokens: int) -> float:
        """One more row's cost in a step that makes `n_tokens` tokens, where such a step costs 1 for each of them.

        From nearly 0, when the step is all waiting, to 1, when it is all rows.
        """
        row, fixed = self._line()
        return row / (fixed / max(n_tokens, 1) + row)

    def _line(self) -> tuple[float, float]:
        """Seconds of a row, and of a step without rows."""
        if self._seconds <= 0:
            return 1.0, _PRIOR_ROWS
        prior = self._seconds / (self._rows + _PRIOR_ROWS)
        least, most = 0.02 * prior, self._seconds / self._rows
        variance = self._variance / self._weight
        row = (self._covariance / self._weight + prior * _PRIOR_VARIANCE) / (variance + _PRIOR_VARIANCE)
        row = min(max(row, least), most)
        return row, self._seconds - row * self._rows
