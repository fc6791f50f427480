"""Coverage as bytes in Redis: counts, targets, ranges that a worker holds, leases that it was granted; and the keys.

Used by `market.coverage.store` and its callers. All numbers are little-endian:

    counts, pending, targets   u16 [n_layer, n_expert]
    holdings                   by worker: (u16 layer, u16 start, u16 stop) each, merged and ascending
    pledges                    by worker: leases, (8 bytes lease id, a range as above, f64 end and f64 begin in ms) each
    since                      by worker: Unix time in ms of the first heartbeat since its last absence, as text
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kvasir.experts import ExpertRange
from market.coverage.model_facts import ModelFacts
from market.coverage.scarcity import Counts
from market.coverage.targets import first_targets
from market.settings import TargetBounds

LARGEST_COUNT = 0xFFFF
_RANGE = struct.Struct("<HHH")
_LEASE = struct.Struct("<8sHHHdd")

# The order is that of KEYS in every script. `pledges` holds the leases: names in Redis stay as they are
KEY_NAMES = ("counts", "pending", "holdings", "beats", "pledges", "ends", "facts", "version", "targets", "since")


@dataclass(frozen=True, slots=True)
class PendingLease:
    """A range that is leased to a worker until `end_ms` and that it does not hold yet."""

    lease_id: str  # 16 hex digits
    range: ExpertRange
    end_ms: int


def coverage_keys(fingerprint: str) -> list[str]:
    """Return the keys of a model's coverage, in the order of KEY_NAMES."""
    return [coverage_key(fingerprint, name) for name in KEY_NAMES]


def coverage_key(fingerprint: str, name: str) -> str:
    """Return one key of a model's coverage."""
    return f"coverage:{fingerprint}:{name}"


def pack_ranges(ranges: Iterable[ExpertRange]) -> bytes:
    """Pack merged, ascending ranges as a value of `holdings`."""
    return b"".join(_RANGE.pack(item.layer, item.start, item.stop) for item in ranges)


def unpack_ranges(data: bytes | None) -> tuple[ExpertRange, ...]:
    """Unpack a value of `holdings`; empty for a worker that holds nothing."""
    return tuple(ExpertRange(*fields) for fields in _RANGE.iter_unpack(data or b""))


def unpack_leases(data: bytes | None) -> tuple[PendingLease, ...]:
    """Unpack a value of `pledges`."""
    return tuple(
        PendingLease(lease_id.hex(), ExpertRange(layer, start, stop), int(end_ms))
        for lease_id, layer, start, stop, end_ms, _ in _LEASE.iter_unpack(data or b"")
    )


def unpack_counts(data: bytes | None, facts: ModelFacts) -> Counts:
    """Unpack a string of u16 to [n_layer, n_expert]; zeros for a string of another size or None."""
    if data is None or len(data) != 2 * facts.n_cell:
        return np.zeros((facts.n_layer, facts.n_expert), np.int64)
    return np.frombuffer(data, "<u2").reshape(facts.n_layer, facts.n_expert).astype(np.int64)


def unpack_targets(data: bytes, facts: ModelFacts, bounds: TargetBounds) -> Counts:
    """Unpack targets to [n_layer, n_expert]; the targets before any traffic for a string of another size."""
    if len(data) != 2 * facts.n_cell:
        return first_targets(facts.bytes_by_layer > 0, facts.n_expert, bounds)
    return unpack_counts(data, facts)


def pack_counts(counts: Counts) -> bytes:
    """Pack counts as a string of u16, clipped to LARGEST_COUNT."""
    return np.clip(counts, 0, LARGEST_COUNT).astype("<u2").tobytes()
