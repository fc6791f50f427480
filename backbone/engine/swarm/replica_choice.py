"""Which replica of an expert computes: pure rules over the workers' measurements.

`placement` calls them for each expert of a layer, the busiest first, and for a second worker when the first is late.
`dispatch.dispatcher` asks which workers take part in a layer call.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from backbone.engine.swarm.measured import UNMEASURED, Measured

PROBE_EVERY = 509  # layer calls; a prime, so that probes fall on all layers
GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread evenly for every stride


def least_expected(
    worker_ids: Iterable[str], load: Mapping[str, float], measured: Mapping[str, Measured], n_pairs: int
) -> str:
    """Return the worker that is expected to answer first; among equals the smallest id. At least one is needed.

    `load` are the pairs that a worker was given in this layer already; `measured` includes what is under way to it. A
    worker without measurements counts as near and fast, so that it gets measured.
    """

    def rank(worker_id: str) -> tuple[float, str]:
        known = measured.get(worker_id, UNMEASURED)
        return known.expected_s(load.get(worker_id, 0) + n_pairs), worker_id

    return min(worker_ids, key=rank)


def sooner_of_two(
    worker_ids: Iterable[str],
    load: Mapping[str, float],
    measured: Mapping[str, Measured],
    n_pairs: int,
    call: tuple[int, int, int],
) -> str:
    """Return the sooner of two workers, which the call (layer, expert, turn) draws; see `least_expected`.

    Measurements are a little old, and other backbones choose by similar ones: if all took the best worker, they would
    overload it. Workers without measurements are always drawn beside the two, so that new and probed ones get work.
    """
    names = list(worker_ids)
    if len(names) > 2:
        names.sort()
        draw = _mixed(call)
        first, second = draw % len(names), draw // len(names) % (len(names) - 1)
        drawn = {names[first], names[second + (second >= first)]}
        names = [name for name in names if name in drawn or measured.get(name, UNMEASURED).n_answers == 0]
    return least_expected(names, load, measured, n_pairs)


def taking_part(live: Collection[str], measured: Mapping[str, Measured], turn: int) -> Collection[str]:
    """Return the live workers that may be given work in layer call number `turn`.

    A worker that returns after a failure takes part in its share of the calls, evenly spread over the layers.
    """
    if all(measured.get(worker_id, UNMEASURED).share >= 1.0 for worker_id in live):
        return live
    return frozenset(name for name in live if _turn_of(name, turn) < measured.get(name, UNMEASURED).share)


def with_probe(live: Collection[str], measured: Mapping[str, Measured], turn: int) -> Mapping[str, Measured]:
    """Return the measurements for layer call number `turn`: every PROBE_EVERY calls one worker counts as unmeasured.

    Otherwise a worker that was slow once would never be asked again, even when it has become fast.
    """
    if turn % PROBE_EVERY or len(live) < 2:
        return measured
    names = sorted(live)
    probed = names[int(turn * GOLDEN % 1.0 * len(names))]
    return {**measured, probed: replace(UNMEASURED, share=measured.get(probed, UNMEASURED).share)}


def _turn_of(worker_id: str, turn: int) -> float:
    """Return a number from 0 to 1, evenly spread over the turns, with another offset for each worker."""
    return (turn * GOLDEN + zlib.crc32(worker_id.encode()) / 2**32) % 1.0


def _mixed(numbers: Iterable[int]) -> int:
    """Return a 32-bit hash of some numbers."""
    mixed = 0
    for number in numbers:
        mixed = (mixed ^ number) * 0x9E3779B1 & 0xFFFFFFFF
        mixed = (mixed ^ mixed >> 15) * 0x85EBCA6B & 0xFFFFFFFF
        mixed ^= mixed >> 13
    return mixed
