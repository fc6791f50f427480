"""Measured costs of drafts: of one more row in a step, and of a guess by the MTP head.

The engine adds measured times and asks how far drafts pay. Rows of other sequences share a step's fixed costs (waiting
for the network, reading the weights), so one more row is cheap beside few and dear beside many. Pure: no clock is read.
"""

from __future__ import annotations

_FORGET = 0.98  # weight of the known steps, at each step
_FIRST_ROWS = 8.0  # a step's fixed cost in rows, before the first measurement
_MOST_ROWS = 1000.0
_DOUBT = 4.0  # the weight of earlier knowledge as a variance, in rows²
_NO_TIME_S = 1e-9  # times below it are a clock that stands still
_HOPE = 0.5  # the share by which an uncertain cost is lowered
_LEARN = 0.1  # weight of the last steps' estimate, at each step
_FIRST_SHARE = 0.1  # of a step, before the first measurement
_TRUSTED_FOR = 256  # calls of `relative` without a new time; after them the head is measured again


class RowCost:
    """A line through (rows, seconds) of the steps so far, by moving moments; `add` each, ask `relative`."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._rows = self._seconds = 0.0  # means
        self._variance = self._covariance = 0.0  # sums of weighted products of differences from the means
        self._fixed_rows = _FIRST_ROWS  # kept while all steps are alike, as they do not show it

    def add(self, n_rows: int, seconds: float) -> None:
        """Add a step of `n_rows` rows that took `seconds`."""
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
        """Return one more row's cost in a step that makes `n_tokens` tokens, where such a step costs 1 a token.

        It is nearly 0 when the step is all waiting, and 1 when it is all rows. Steps that are alike do not show it:
        then it is lowered by up to half, so that drafts are tried, which make the next steps differ.
        """
        n = max(n_tokens, 1)
        variance = self._variance / self._weight if self._weight else 0.0
        doubt = _DOUBT / (variance + _DOUBT)
        return (1 - _HOPE * doubt) * n / (self._fixed_rows + n)

    def seconds(self, n_rows: int) -> float | None:
        """Return the seconds of a step of `n_rows` rows, or None before the first measurement."""
        if self._seconds <= _NO_TIME_S:
            return None
        return self._seconds * (self._fixed_rows + n_rows) / (self._fixed_rows + self._rows)

    def _found(self) -> float:
        """Return a step's fixed cost in rows by the last steps, nearer to the known one the more alike they are."""
        known = self._seconds / (self._rows + self._fixed_rows)
        variance = self._variance / self._weight
        row = (self._covariance / self._weight + known * _DOUBT) / (variance + _DOUBT)
        least, most = self._seconds / (self._rows + _MOST_ROWS), self._seconds / self._rows
        return self._seconds / min(max(row, least), most) - self._rows


class HeadCost:
    """The cost of the MTP head's guesses beside a step's, by moving moments; `add` each, ask `relative`.

    All sequences that guess at once share the reading of the head's weights, as in a step.
    """

    def __init__(self) -> None:
        self._line: RowCost | None = None  # None until the first forward, which reads weights from the disk
        self._n_asked = 0

    def add(self, n_rows: int, seconds: float) -> None:
        """Add a forward that made one guess for each of `n_rows` sequences in `seconds`."""
        self._n_asked = 0
        if self._line is None:
            self._line = RowCost()
        else:
            self._line.add(n_rows, seconds)

    def relative(self, step: RowCost, n_tokens: int, n_rows: int) -> float:
        """Return one sequence's cost of a guess that is made for `n_rows` sequences at once.

        A token costs 1 in a `step` without drafts that makes `n_tokens`.
        """
        self._n_asked += 1
        if self._n_asked > _TRUSTED_FOR and self._line is not None:
            self._line = RowCost()
        head_s = self._line.seconds(n_rows) if self._line is not None else None
        step_s = step.seconds(n_tokens)
        share = head_s / step_s if head_s is not None and step_s is not None else _FIRST_SHARE
        return share * n_tokens / n_rows
