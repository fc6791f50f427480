"""Which replica of an expert computes: pure rules over what was measured of the workers.

`placement` asks for each expert of a layer, the busiest first; `dispatch.dispatcher` for a second worker when the first
is late.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from backbone.engine.swarm.measured import UNMEASURED, Measured

PROBE_EVERY = 509  # layer calls; a prime, so that probes fall on all layers
GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread evenly whatever their stride


def least_expected(
    worker_ids: Iterable[str], load: Mapping[str, float], measured: Mapping[str, Measured], n_pairs: int
) -> str:
    """The worker that would answer first, of at least one; the smallest id among equals.

    `load` are the pairs that it was given in this layer already; what is under way to it is part of `measured`. A
    worker without measurements is taken for a near and fast one, so that it gets measured.
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
    """Of two workers drawn by the call (layer, expert, turn) the one that would answer first; see `least_expected`.

    Measurements are a little old, and other backbones have theirs: who always takes the best of all meets everybody
    there. One that was not measured yet is always drawn beside the two, so that new and probed workers get their turn.
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
    """The live workers that may be given work in layer call number `turn`.

    A worker that is being let back in takes part in its share of the calls, evenly spread over the layers.
    """
    if all(measured.get(worker_id, UNMEASURED).share >= 1.0 for worker_id in live):
        return live
    return frozenset(name for name in live if _turn_of(name, turn) < measured.get(name, UNMEASURED).share)


def with_probe(live: Collection[str], measured: Mapping[str, Measured], turn: int) -> Mapping[str, Measured]:
    """Measurements for layer call number `turn`: once in a while one worker, by turns, counts as not yet measured.

    Otherwise one that was slow once would never be asked again, and never be found to be fast.
    """
    if turn % PROBE_EVERY or len(live) < 2:
        return measured
    names = sorted(live)
    probed = names[int(turn * GOLDEN % 1.0 * len(names))]
    return {**measured, probed: replace(UNMEASURED, share=measured.get(probed, UNMEASURED).share)}


def _turn_of(worker_id: str, turn: int) -> float:
    """A number from 0 to 1 that walks evenly through the turns, another way for each worker."""
    return (turn * GOLDEN + zlib.crc32(worker_id.encode()) / 2**32) % 1.0


def _mixed(numbers: Iterable[int]) -> int:
    """A number of 32 bits that looks random, the same for the same numbers."""
    mixed = 0
    for number in numbers:
        mixed = (mixed ^ number) * 0x9E3779B1 & 0xFFFFFFFF
        mixed = (mixed ^ mixed >> 15) * 0x85EBCA6B & 0xFFFFFFFF
        mixed ^= mixed >> 13
    return mixed
