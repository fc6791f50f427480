"""The model whose slices this process serves, and the plans of recently requested slices.

`slices.server` and `slices.manifests` use it. The model is opened at the first request, and again after its file was
replaced; no weight is read. Every call may block on the disk: call it from a thread.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvasir.errors import GGUFError, KvasirError, SliceError
from kvasir.experts import ExpertRange
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.expert_ranges import merge_ranges, parse_ranges
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slice_plan import SlicePlan, plan_slice

PLANS_KEPT = 64
EXPERTS_TEXT_MAX = 8192  # characters of a list of ranges


class UnknownModelError(KvasirError):
    """This site does not serve the requested model."""


@dataclass(frozen=True, slots=True)
class OpenModel:
    """An open model and its card."""

    index: GGUFIndex
    card: ModelCard

    def is_current(self) -> bool:
        """Return whether its files are still those that were opened."""
        try:
            for part in self.index.part_files:
                part.check_unchanged(part.path.stat())
        except (GGUFError, OSError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """A slice that can be sent. `etag` is a strong entity tag: two slices with the same tag have the same bytes."""

    model: OpenModel
    plan: SlicePlan
    etag: str


@dataclass(frozen=True, slots=True)
class FileSpan:
    """`n_bytes` bytes at `offset` of part number `part` of the model."""

    part: int
    offset: int
    n_bytes: int


class SliceShelf:
    """Thread-safe. One per process; `model` is None where no model is served."""

    def __init__(self, model: Path | None) -> None:
        self._path = model
        self._lock = threading.Lock()
        self._open: OpenModel | None = None
        self._plans: OrderedDict[tuple[ExpertRange, ...], PlannedSlice] = OrderedDict()

    def planned(self, fingerprint: str, experts: str) -> PlannedSlice:
        """Return the plan of these experts ("0:0-8,1:0-8") of this model.

        Raises UnknownModelError for another model, SliceError for experts that it does not have, GGUFError when its
        file cannot be read.
        """
        with self._lock:
            model = self._current(fingerprint)
            if len(experts) > EXPERTS_TEXT_MAX:
                raise SliceError(
                    f"the list of experts has {len(experts)} characters, at most {EXPERTS_TEXT_MAX} may be"
                )
            ranges = merge_ranges(parse_ranges(experts, model.card.moe_layers))
            if ranges in self._plans:
                self._plans.move_to_end(ranges)
                return self._plans[ranges]
            plan = plan_slice(model.index, model.card, ranges)
            planned = self._plans[ranges] = PlannedSlice(model, plan, _etag(plan))
            if len(self._plans) > PLANS_KEPT:
                self._plans.popitem(last=False)
            return planned

    def _current(self, fingerprint: str) -> OpenModel:
        if self._path is None:
            raise UnknownModelError("this site serves no model")
        if self._open is None or not self._open.is_current():
            self._plans.clear()
            self._open = None
            index = GGUFIndex.open(self._path)
            self._open = OpenModel(index, ModelCard.from_index(index))
        card = self._open.card
        if fingerprint != card.fingerprint:
            raise UnknownModelError(f"model {fingerprint[:64]!r} is not served here; {card.fingerprint} is")
        return self._open


def segments(plan: SlicePlan, start: int, stop: int) -> Iterator[bytes | FileSpan]:
    """Yield a slice's bytes from `start` up to `stop`: header and padding as bytes, weights as spans of files."""
    position = start
    if position < len(plan.header):
        yield plan.header[position : min(stop, len(plan.header))]
        position = min(stop, len(plan.header))
    for item in plan.byte_ranges:
        if item.stop <= position:
            continue
        if position >= stop:
            return
        if position < item.position:
            padding_stop = min(item.position, stop)
            yield bytes(padding_stop - position)
            position = padding_stop
        if position < stop:
            span_stop = min(item.stop, stop)
            yield FileSpan(item.part, item.offset + position - item.position, span_stop - position)
            position = span_stop
    if position < stop:
        yield bytes(stop - position)


def read_span(descriptor: int, span: FileSpan) -> bytes:
    """Return the bytes of a span. Raises GGUFError when the file ends early."""
    data = os.pread(descriptor, span.n_bytes, span.offset)
    if len(data) < span.n_bytes:
        raise GGUFError(f"a model file ended at byte {span.offset + len(data)}, {span.n_bytes - len(data)} bytes early")
    return data


def _etag(plan: SlicePlan) -> str:
    """Return the tag: the header has the model's fingerprint, ranges, types and shapes, and so identifies all bytes."""
    digest = hashlib.sha256(plan.header)
    digest.update(str(plan.n_bytes).encode())
    return f'"{digest.hexdigest()[:40]}"'
