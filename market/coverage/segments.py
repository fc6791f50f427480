"""The `segments` of heartbeats and volunteers: [[layer, begin, end], ...], read strictly.

What is malformed is refused with a reason that names the layer and the value; nothing is clipped, dropped or guessed.
Called by `market.coverage.participation`.
"""

from __future__ import annotations

from kvasir.experts import ExpertRange
from kvasir.slicing.expert_ranges import merge_ranges
from market.coverage.model_facts import ModelFacts
from market.errors import MarketError

MOST_SEGMENTS = 8192


def parse_segments(raw: object, facts: ModelFacts, name: str = "segments") -> tuple[ExpertRange, ...]:
    """Merged, ascending ranges. Raises MarketError 400 `malformed_segments`."""
    if not isinstance(raw, list):
        raise _refused(f"{name} is {_shown(raw)}; it must be a list of [layer, begin, end]")
    if len(raw) > MOST_SEGMENTS:
        raise _refused(f"{name} has {len(raw)} items; {MOST_SEGMENTS} are allowed: join ranges that touch")
    return merge_ranges(_parse_segment(item, number, facts, name) for number, item in enumerate(raw))


def _parse_segment(raw: object, number: int, facts: ModelFacts, name: str) -> ExpertRange:
    where = f"{name}[{number}]"
    if not isinstance(raw, list) or len(raw) != 3:
        raise _refused(f"{where} is {_shown(raw)}; it must be [layer, begin, end]")
    for value, part in zip(raw, ("layer", "begin", "end"), strict=True):
        if not isinstance(value, int) or isinstance(value, bool):
            raise _refused(f"{where} (layer {_shown(raw[0])}): {part} is {_shown(value)}; it must be a whole number")
    layer, begin, end = raw
    if not 0 <= layer < facts.n_layer:
        raise _refused(f"{where}: layer {layer} is not decoded; layers are 0 to {facts.n_layer - 1}")
    if not facts.expert_bytes[layer]:
        raise _refused(f"{where}: layer {layer} has no experts")
    if not 0 <= begin < end <= facts.n_expert:
        raise _refused(
            f"{where}: layer {layer} has experts 0 to {facts.n_expert - 1}; "
            f"begin {begin} and end {end} must be 0 <= begin < end <= {facts.n_expert}"
        )
    return ExpertRange(layer, begin, end)


def _refused(message: str) -> MarketError:
    return MarketError(400, "malformed_segments", message)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
