"""Coverage as bytes in Redis: counts, ranges that a worker holds, ranges that it was promised; and the keys' names.

Used by `market.coverage.store` and `market.coverage.reading`. All numbers are little-endian:

    counts, pending, targets   u16 [n_layer, n_expert]
    holdings                   by worker: (u16 layer, u16 start, u16 stop) each, merged and ascending
    pledges                    by worker: (8 bytes lease id, a range as above, f64 end and f64 begin in ms) each
    since                      by worker: Unix time in ms of the first heartbeat since it was last gone, as text
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvasir.experts import ExpertRange
from kvasir.slicing.model_card import LAYERS_MAX

LARGEST_COUNT = 0xFFFF
_RANGE = struct.Struct("<HHH")
_PLEDGE = struct.Struct("<8sHHHdd")
RANGE_BYTES, PLEDGE_BYTES = _RANGE.size, _PLEDGE.size
MOST_LAYERS = LAYERS_MAX

Counts = npt.NDArray[np.int64]  # [n_layer, n_expert]

# The order is that of KEYS in every script
KEY_NAMES = ("counts", "pending", "holdings", "beats", "pledges", "ends", "facts", "version", "targets", "since")


@dataclass(frozen=True, slots=True)
class Pledge:
    """A range that was promised to a worker until `end_ms`."""

    lease_id: str  # 16 hex digits
    range: ExpertRange
    end_ms: int


def coverage_keys(fingerprint: str) -> list[str]:
    """The keys of a model's coverage, in the order of KEY_NAMES."""
    return [coverage_key(fingerprint, name) for name in KEY_NAMES]


def coverage_key(fingerprint: str, name: str) -> str:
    """One key of a model's coverage."""
    return f"coverage:{fingerprint}:{name}"


def pack_ranges(ranges: Iterable[ExpertRange]) -> bytes:
    """Merged, ascending ranges as a value of `holdings`."""
    return b"".join(_RANGE.pack(item.layer, item.start, item.stop) for item in ranges)


def unpack_ranges(data: bytes | None) -> tuple[ExpertRange, ...]:
    """What `pack_ranges` packed; nothing for a worker that holds nothing."""
    return tuple(ExpertRange(*fields) for fields in _RANGE.iter_unpack(data or b""))


def unpack_pledges(data: bytes | None) -> tuple[Pledge, ...]:
    """A value of `pledges`."""
    return tuple(
        Pledge(lease_id.hex(), ExpertRange(layer, start, stop), int(end_ms))
        for lease_id, layer, start, stop, end_ms, _ in _PLEDGE.iter_unpack(data or b"")
    )


def unpack_counts(data: bytes | None, n_layer: int, n_expert: int) -> Counts:
    """A string of u16 as an array [n_layer, n_expert]; zeros when there is none of that size."""
    if data is None or len(data) != 2 * n_layer * n_expert:
        return np.zeros((n_layer, n_expert), np.int64)
    return np.frombuffer(data, "<u2").reshape(n_layer, n_expert).astype(np.int64)


def pack_counts(counts: Counts) -> bytes:
    """An array of counts as a string of u16."""
    return np.clip(counts, 0, LARGEST_COUNT).astype("<u2").tobytes()
