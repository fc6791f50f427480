"""Splitting a dispatch that is too large for one frame: by rows, so that request and answer both fit.

The edge calls this before it sends. Pure; which worker a row goes to was decided before.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kvasir.errors import WireError
from kvasir.kernels.api import EncodedRows, Pairs
from kvasir.wire_header import Limits

PAIR_BYTES = 8
RESULT_VALUE_BYTES = 4  # an f16 answer may have to go as f32


@dataclass(frozen=True, slots=True, eq=False)
class DispatchPart:
    """Some rows of a dispatch with all their pairs."""

    rows: EncodedRows  # [n_rows, row bytes]
    pair_rows: Pairs  # [n_pairs], counted inside this part
    pair_ids: Pairs  # [n_pairs]
    pairs: npt.NDArray[np.intp] | slice  # where these pairs stand in the whole dispatch


def result_bytes(n_pairs: int, d_model: int) -> int:
    """Payload bytes that an answer of `n_pairs` may take."""
    return n_pairs * d_model * RESULT_VALUE_BYTES


def split_dispatch(
    rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs, d_model: int, limits: Limits
) -> list[DispatchPart]:
    """Cut a dispatch between rows into as few parts as the limits allow, in the order of the rows and of like sizes.

    A part's own payload and its answer's both stay within `limits.max_payload_bytes`. Rows that no pair names are
    not sent when there is more than one part. Raises WireError when a single row with its pairs is too large, or
    when `pair_rows` names a row that does not exist.
    """
    n_rows = len(rows)
    if len(pair_rows) and (int(pair_rows.min()) < 0 or int(pair_rows.max()) >= n_rows):
        raise WireError(f"pairs name rows {pair_rows.min()} to {pair_rows.max()}, there are {n_rows} rows")
    if _fits(n_rows, len(pair_rows), rows.shape[1], d_model, limits):
        return [DispatchPart(rows, pair_rows, pair_ids, slice(0, len(pair_rows)))]
    is_sorted = bool((pair_rows[1:] >= pair_rows[:-1]).all())
    order = slice(None) if is_sorted else np.argsort(pair_rows, kind="stable")
    ordered_rows, ordered_ids = pair_rows[order], pair_ids[order]
    first_pair = np.searchsorted(ordered_rows, np.arange(n_rows + 1))
    parts = []
    for start, stop in _cuts(np.diff(first_pair), rows.shape[1], d_model, limits):
        pairs = slice(int(first_pair[start]), int(first_pair[stop]))
        if pairs.start < pairs.stop:
            places = pairs if isinstance(order, slice) else order[pairs]
            parts.append(DispatchPart(rows[start:stop], ordered_rows[pairs] - start, ordered_ids[pairs], places))
    return parts


def _fits(n_rows: int, n_pairs: int, row_bytes: int, d_model: int, limits: Limits) -> bool:
    return (
        n_rows <= limits.max_rows
        and n_pairs <= limits.max_pairs
        and n_rows * row_bytes + n_pairs * PAIR_BYTES <= limits.max_payload_bytes
        and result_bytes(n_pairs, d_model) <= limits.max_payload_bytes
    )


def _cuts(counts: npt.NDArray[np.intp], row_bytes: int, d_model: int, limits: Limits) -> list[tuple[int, int]]:
    """Row ranges of the parts: the fewest that fit, with as many rows each where that fits too."""
    greedy = _greedy_cuts(counts, row_bytes, d_model, limits)
    edges = [len(counts) * i // len(greedy) for i in range(len(greedy) + 1)]
    even = list(pairwise(edges))
    fit = all(_fits(stop - start, int(counts[start:stop].sum()), row_bytes, d_model, limits) for start, stop in even)
    return even if fit else greedy


def _greedy_cuts(counts: npt.NDArray[np.intp], row_bytes: int, d_model: int, limits: Limits) -> list[tuple[int, int]]:
    cuts, start, n_pairs = list[tuple[int, int]](), 0, 0
    for row, count in enumerate(counts.tolist()):
        if not _fits(1, count, row_bytes, d_model, limits):
            raise WireError(f"row {row} with its {count} pairs is over the limit of {limits.max_payload_bytes} bytes")
        if not _fits(row + 1 - start, n_pairs + count, row_bytes, d_model, limits):
            cuts.append((start, row))
            start, n_pairs = row, 0
        n_pairs += count
    cuts.append((start, len(counts)))
    return cuts
