"""The pulses of backbones for the dashboard: their load, their counters, and each worker as they see it.

Each backbone writes its own field of the Redis hash `pulse:<fingerprint>` about once a second; the dashboard reads the
fresh ones. This module is the codec and the key's name; it opens no connection and imports no engine.

    field: the backbone's id     value: JSON, the fields of `Pulse`
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from kvasir.errors import WireError

if TYPE_CHECKING:
    from redis import Redis

FRESH_S = 5.0  # older pulses are not shown
EXPIRY_S = 60
SOURCES = ("workers", "hot", "fallback")
LATENCIES = ("queue_s", "first_token_s", "request_s")


def pulse_key(fingerprint: str) -> str:
    """Return the key of the hash of a model's pulses."""
    return f"pulse:{fingerprint}"


@dataclass(frozen=True, slots=True)
class WorkerPulse:
    """A node as one backbone sees it. `round_trip_ms` is the shortest time of an answer; None before the first."""

    round_trip_ms: float | None = None
    rows_per_s: float = 0.0  # row-experts used, a moving average
    usable: bool = False  # may get work: connected, tested, not in quarantine
    proven: bool = False


@dataclass(frozen=True, slots=True)
class Pulse:
    """One backbone at one moment. Counters start at 0 with it; `latencies` has seconds of recent requests by name."""

    at_s: float
    running: int = 0
    waiting: int = 0
    slots: int = 0
    queued: int = 0  # requests that no backbone has taken yet
    tokens: int = 0
    row_experts: Mapping[str, int] = field(default_factory=dict)  # by source
    latencies: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    workers: Mapping[str, WorkerPulse] = field(default_factory=dict)  # by node


def publish_pulse(client: Redis, fingerprint: str, backbone_id: str, pulse: Pulse) -> None:
    """Write a backbone's field. Raises the client's errors."""
    client.hset(pulse_key(fingerprint), backbone_id, pack_pulse(pulse))
    client.expire(pulse_key(fingerprint), EXPIRY_S)


def withdraw_pulse(client: Redis, fingerprint: str, backbone_id: str) -> None:
    """Remove a backbone's field. Raises the client's errors."""
    client.hdel(pulse_key(fingerprint), backbone_id)


def pack_pulse(pulse: Pulse) -> str:
    """Pack a pulse as a field's value."""
    return json.dumps(asdict(pulse), separators=(",", ":"))


def unpack_pulse(data: bytes | str) -> Pulse:
    """Unpack a field's value. Raises WireError when it is malformed."""
    try:
        said: dict[str, Any] = json.loads(data)
        workers = {str(node): WorkerPulse(**facts) for node, facts in said.pop("workers").items()}
        latencies = {str(name): tuple(map(float, values)) for name, values in said.pop("latencies").items()}
        return Pulse(**said, workers=workers, latencies=latencies)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise WireError(f"not a pulse of this version: {type(error).__name__}: {error}") from error


def fresh_pulses(fields: Iterable[bytes | str], now_s: float) -> list[Pulse]:
    """Return the fresh pulses. Malformed ones, of backbones of another version, are left out."""
    found = []
    for data in fields:
        try:
            pulse = unpack_pulse(data)
        except WireError:
            continue
        if abs(now_s - pulse.at_s) <= FRESH_S:
            found.append(pulse)
    return found


def joined_workers(pulses: Iterable[Pulse]) -> dict[str, WorkerPulse]:
    """Join each node over all backbones: rates add up, the shortest round trip counts, all must call it proven."""
    joined: dict[str, WorkerPulse] = {}
    for pulse in pulses:
        for node, seen in pulse.workers.items():
            known = joined.get(node)
            joined[node] = seen if known is None else _both(known, seen)
    return joined


def _both(one: WorkerPulse, other: WorkerPulse) -> WorkerPulse:
    trips = [trip for trip in (one.round_trip_ms, other.round_trip_ms) if trip is not None]
    return WorkerPulse(
        round_trip_ms=min(trips, default=None),
        rows_per_s=one.rows_per_s + other.rows_per_s,
        usable=one.usable or other.usable,
        proven=one.proven and other.proven,
    )
