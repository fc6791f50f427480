"""Expert ranges: parsed from `--experts`, merged, and checked against a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kvasir.errors import SliceError
from kvasir.experts import ExpertRange
from kvasir.slicing.model_card import ModelCard

_PIECE = re.compile(r"(?P<layer>\*|\d{1,6}):(?P<start>\d{1,9})-(?P<stop>\d{1,9})", re.ASCII)


def parse_ranges(text: str, moe_layers: Sequence[int] = ()) -> tuple[ExpertRange, ...]:
    """Parse "0:0-8,1:0-8" or "*:0-8": layer, first expert, and the expert to stop before; comma-separated.

    "*" stands for every layer in `moe_layers`. Raises SliceError that names the invalid piece.
    """
    ranges: list[ExpertRange] = []
    for raw_piece in text.split(","):
        piece = raw_piece.strip()
        match = _PIECE.fullmatch(piece)
        if match is None:
            raise SliceError(f"expert range {piece!r} is not LAYER:START-STOP, like 0:0-8 or *:0-8")
        start, stop = int(match["start"]), int(match["stop"])
        if stop <= start:
            raise SliceError(f"expert range {piece!r} is empty: it must stop after {start}, as in {start}-{start + 1}")
        if match["layer"] != "*":
            ranges.append(ExpertRange(int(match["layer"]), start, stop))
        elif moe_layers:
            ranges.extend(ExpertRange(layer, start, stop) for layer in moe_layers)
        else:
            raise SliceError(f"expert range {piece!r} needs a model, because * stands for its layers")
    return tuple(ranges)


def merge_ranges(ranges: Iterable[ExpertRange]) -> tuple[ExpertRange, ...]:
    """Return the same experts as sorted ranges that neither overlap nor touch within a layer."""
    merged: list[ExpertRange] = []
    for item in sorted(ranges):
        last = merged[-1] if merged else None
        if last is not None and last.layer == item.layer and item.start <= last.stop:
            merged[-1] = ExpertRange(last.layer, last.start, max(last.stop, item.stop))
        else:
            merged.append(item)
    return tuple(merged)


def check_ranges(ranges: Iterable[ExpertRange], card: ModelCard) -> None:
    """Raise SliceError that names the first range outside the model; ranges are never clipped."""
    for item in ranges:
        card.moe_layer(item.layer)
        if item.stop > card.n_expert:
            raise SliceError(
                f"expert range {item.layer}:{item.start}-{item.stop} is not in the model: "
                f"layer {item.layer} has experts 0 to {card.n_expert - 1}, so stop may be at most {card.n_expert}"
            )
