"""Measure what the relay costs, against the least that a relay can be: one written with the `websockets` library alone.

`python -m benchmarks.bench_relay [--json] [--quick]`. Both run as processes and carry the same load in turns: small
frames to 16 workers, 16 under way, one bundle a step; and frames of 3 MB to one worker, two under way. CPU is the
relay process's, per frame one way. Then 200 MB are pushed at sides that read slowly or nothing, and the relay's peak
memory is read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import describe_commit, describe_machine
from benchmarks.relay.load import Load
from benchmarks.relay.sandbox import RelayUnderTest, bare_relay, kvasir_relay
from benchmarks.relay.slow import push_at_slow_readers
from kvasir.wire.frames import Role


@dataclass(frozen=True, slots=True)
class Case:
    """A load."""

    payload_bytes: int
    n_workers: int
    window: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: CPU seconds of the relay per frame one way, and payload megabytes a second one way."""

    cpu_s_per_frame: float
    mb_s: float


Pairs = list[tuple[Measured, Measured]]  # bare and ours, by round

SMALL = Case(6144, n_workers=16, window=16)
LARGE = Case(3_000_000, n_workers=1, window=2)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a smoke run whose figures mean nothing")
    options = parser.parse_args()
    rounds, seconds, n_frames = (1, 0.3, 20) if options.quick else (7, 2.0, 200)
    with tempfile.TemporaryDirectory() as folder:
        keys = _figures(Path(folder), rounds, seconds, n_frames)
    if options.json:
        print(json.dumps({key: value for key, value in keys.items() if not key.startswith("_")}))
        return
    for key, value in keys.items():
        print(f"{key.removeprefix('_'):<34} {value}")


def _figures(folder: Path, rounds: int, seconds: float, n_frames: int) -> dict[str, object]:
    with bare_relay() as bare, kvasir_relay(folder) as (ours, tokens):
        small = _interleaved(bare, ours, tokens, SMALL, rounds, seconds)
        large = _interleaved(bare, ours, tokens, LARGE, rounds, seconds)
    with tempfile.TemporaryDirectory() as other, kvasir_relay(Path(other)) as (relay, tokens):
        idle_mb = relay.peak_rss_mb()
        asyncio.run(push_at_slow_readers(relay.url, tokens, n_frames))
        peak_mb = relay.peak_rss_mb()
    return as_keys(small, large, peak_mb) | {
        "_idle_rss_mb": round(idle_mb, 1),
        "_mb_s ratio_3m (bare / ours)": _ratio([bare.mb_s / ours.mb_s for bare, ours in large]),
    }


def as_keys(small: Pairs, large: Pairs, peak_mb: float) -> dict[str, object]:
    """The figures under the names that they are published with."""
    return {
        "cpu_us_per_frame_6k": round(statistics.median(ours.cpu_s_per_frame for _, ours in small) * 1e6, 1),
        "ratio_vs_bare_websockets_6k": _ratio([ours.cpu_s_per_frame / bare.cpu_s_per_frame for bare, ours in small]),
        "mb_s_3m": round(statistics.median(ours.mb_s for _, ours in large), 1),
        "ratio_vs_bare_websockets_3m": _ratio([ours.cpu_s_per_frame / bare.cpu_s_per_frame for bare, ours in large]),
        "peak_rss_mb_slow_consumer": round(peak_mb, 1),
        "machine": describe_machine(),
        "commit": describe_commit(),
    }


def _interleaved(
    bare: RelayUnderTest, ours: RelayUnderTest, tokens: dict[Role, str], case: Case, rounds: int, seconds: float
) -> Pairs:
    return [
        (
            asyncio.run(_measure(bare, tokens, case, seconds)),
            asyncio.run(_measure(ours, tokens, case, seconds)),
        )
        for _ in range(rounds)
    ]


async def _measure(relay: RelayUnderTest, tokens: dict[Role, str], case: Case, seconds: float) -> Measured:
    async with Load(relay.url, tokens, case.n_workers) as load:
        await load.run(case.payload_bytes, case.window, seconds / 10)
        before = relay.cpu_s()
        done = await load.run(case.payload_bytes, case.window, seconds)
        cpu_s = relay.cpu_s() - before
    n_frames = 2 * done.n_round_trips
    return Measured(cpu_s / n_frames, done.n_round_trips * case.payload_bytes / done.seconds / 1e6)


def _ratio(ratios: list[float]) -> float:
    return round(statistics.median(ratios), 3)


if __name__ == "__main__":
    main()
