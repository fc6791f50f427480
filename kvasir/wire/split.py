"""Splits a dispatch that is too large for one frame by rows, so that request and answer both fit.

The backbone's end of an edge calls it before it sends. Pure; the worker has been chosen by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kvasir.errors import WireError
from kvasir.kernels.api import EncodedRows, Pairs
from kvasir.wire.frames import SumOrder
from kvasir.wire.header import Limits, sums_bytes

PAIR_BYTES = 8
ORDER_BYTES = 4  # of a pair's weight, and of a row's exponent
RESULT_VALUE_BYTES = 4  # an f16 answer may be sent as f32


@dataclass(frozen=True, slots=True, eq=False)
class DispatchPart:
    """Some rows of a dispatch with all their pairs."""

    rows: EncodedRows  # [n_rows, row bytes]
    pair_rows: Pairs  # [n_pairs], counted inside this part
    pair_ids: Pairs  # [n_pairs]
    pairs: npt.NDArray[np.intp] | slice  # the places of these pairs in the whole dispatch
    first_row: int  # the place of the first row
    sums: SumOrder | None = None

    def cost(self, d_model: int) -> int:
        """Return the bytes that count as under way: its rows and the largest answer."""
        is_sums = self.sums is not None
        return self.rows.nbytes + answer_bytes(len(self.rows), len(self.pair_ids), d_model, is_sums=is_sums)


def result_bytes(n_pairs: int, d_model: int) -> int:
    """Return the most payload bytes of an answer with `n_pairs` outputs."""
    return n_pairs * d_model * RESULT_VALUE_BYTES


def answer_bytes(n_rows: int, n_pairs: int, d_model: int, *, is_sums: bool) -> int:
    """Return the most payload bytes of the answer to a dispatch: of sums, or of one output for each pair."""
    return sums_bytes(n_rows, d_model) if is_sums else result_bytes(n_pairs, d_model)


@dataclass(frozen=True, slots=True)
class _Room:
    """The limits of one frame and of its answer."""

    row_bytes: int
    d_model: int
    limits: Limits
    is_sums: bool

    def fits(self, n_rows: int, n_pairs: int) -> bool:
        """Return whether rows with their pairs fit into one frame, and their answer into another."""
        limits = self.limits
        asked = n_rows * self.row_bytes + n_pairs * PAIR_BYTES
        asked += ORDER_BYTES * (n_rows + n_pairs) if self.is_sums else 0
        return (
            n_rows <= limits.max_rows
            and n_pairs <= limits.max_pairs
            and asked <= limits.max_payload_bytes
            and answer_bytes(n_rows, n_pairs, self.d_model, is_sums=self.is_sums) <= limits.max_payload_bytes
        )


def split_dispatch(
    rows: EncodedRows,
    pair_rows: Pairs,
    pair_ids: Pairs,
    d_model: int,
    limits: Limits,
    order: SumOrder | None = None,
) -> list[DispatchPart]:
    """Cut a dispatch between rows into the fewest parts that the limits allow, in the order of the rows.

    The payload of a part and that of its answer both stay within `limits.max_payload_bytes`. With more than one part,
    rows that no pair names are not sent. Raises WireError when a single row with its pairs is too large, or when
    `pair_rows` names a row that does not exist.
    """
    n_rows = len(rows)
    if len(pair_rows) and (int(pair_rows.min()) < 0 or int(pair_rows.max()) >= n_rows):
        raise WireError(f"pairs name rows {pair_rows.min()} to {pair_rows.max()}, there are {n_rows} rows")
    room = _Room(rows.shape[1], d_model, limits, order is not None)
    if room.fits(n_rows, len(pair_rows)):
        return [DispatchPart(rows, pair_rows, pair_ids, slice(0, len(pair_rows)), 0, order)]
    is_sorted = bool((pair_rows[1:] >= pair_rows[:-1]).all())
    sorting = slice(None) if is_sorted else np.argsort(pair_rows, kind="stable")
    ordered_rows, ordered_ids = pair_rows[sorting], pair_ids[sorting]
    first_pair = np.searchsorted(ordered_rows, np.arange(n_rows + 1))
    parts = []
    for start, stop in _cuts(np.diff(first_pair), room):
        pairs = slice(int(first_pair[start]), int(first_pair[stop]))
        if pairs.start < pairs.stop:
            places = pairs if isinstance(sorting, slice) else sorting[pairs]
            part_order = None if order is None else SumOrder(order.weights[places], order.exponents[start:stop])
            pair_rows_here, ids = ordered_rows[pairs] - start, ordered_ids[pairs]
            parts.append(DispatchPart(rows[start:stop], pair_rows_here, ids, places, start, part_order))
    return parts


def _cuts(counts: npt.NDArray[np.intp], room: _Room) -> list[tuple[int, int]]:
    """Return the row ranges of the parts: the fewest that fit, of equal numbers of rows where these fit too."""
    greedy = _greedy_cuts(counts, room)
    edges = [len(counts) * i // len(greedy) for i in range(len(greedy) + 1)]
    even = list(pairwise(edges))
    fit = all(room.fits(stop - start, int(counts[start:stop].sum())) for start, stop in even)
    return even if fit else greedy


def _greedy_cuts(counts: npt.NDArray[np.intp], room: _Room) -> list[tuple[int, int]]:
    cuts, start, n_pairs = list[tuple[int, int]](), 0, 0
    for row, count in enumerate(counts.tolist()):
        if not room.fits(1, count):
            most = room.limits.max_payload_bytes
            raise WireError(f"row {row} with its {count} pairs is over the limit of {most} bytes")
        if not room.fits(row + 1 - start, n_pairs + count):
            cuts.append((start, row))
            start, n_pairs = row, 0
        n_pairs += count
    cuts.append((start, len(counts)))
    return cuts
