"""Throughput over time: tokens of all backbones, and their row-experts by source.

Each backbone appends its counts since its last entry to the Redis stream `throughput:<fingerprint>`, which drops
entries older than KEEP_S. The dashboard reads steps of STEP_S. Functions raise Redis's errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis import Redis

KEEP_S = 600
STEP_S = 5
N_STEPS = KEEP_S // STEP_S
EXPIRY_S = 2 * KEEP_S
SERIES = ("tokens", "workers", "hot", "fallback")


def throughput_key(fingerprint: str) -> str:
    """Return the key of a model's stream."""
    return f"throughput:{fingerprint}"


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates per second by name of SERIES, in steps of STEP_S that end at `end_s` (Unix seconds); the oldest first."""

    end_s: int
    rates: Mapping[str, tuple[float, ...]]


def append_work(client: Redis, fingerprint: str, done: Mapping[str, int], now_s: float) -> None:
    """Append a backbone's counts since its last entry, by name of SERIES; all zero writes nothing."""
    counts: Any = {name: done[name] for name in SERIES if done.get(name)}
    if not counts:
        return
    oldest = str(int((now_s - KEEP_S - STEP_S) * 1000))
    pipeline = client.pipeline(transaction=False)
    pipeline.xadd(throughput_key(fingerprint), counts, id=f"{int(now_s * 1000)}-*", minid=oldest, approximate=False)
    pipeline.expire(throughput_key(fingerprint), EXPIRY_S)
    pipeline.execute()


def read_throughput(client: Redis, fingerprint: str, now_s: float) -> Throughput:
    """Return the last KEEP_S seconds in whole steps, without the step that has not ended yet."""
    end_s = int(now_s // STEP_S) * STEP_S
    first_ms, last_ms = (end_s - KEEP_S) * 1000, end_s * 1000 - 1
    entries: Any = client.xrange(throughput_key(fingerprint), str(first_ms), str(last_ms))
    sums = {name: [0] * N_STEPS for name in SERIES}
    for entry_id, fields in entries:
        step = (int(_text(entry_id).partition("-")[0]) - first_ms) // (STEP_S * 1000)
        for name, count in fields.items():
            if (series := sums.get(_text(name))) is not None:
                series[step] += int(count)
    return Throughput(end_s, {name: tuple(count / STEP_S for count in counts) for name, counts in sums.items()})


def _text(value: bytes | str) -> str:
    """Return text for clients that decode and for those that do not."""
    return value.decode() if isinstance(value, bytes) else value
