"""Bytes of one layer call on the wire: production placement and frames, nothing sent. `bench_wire` adds them up."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from backbone.engine.swarm.placement import DispatchBatch, ReplicaMap, place
from benchmarks.routing.made_routing import Weights
from benchmarks.routing.real_routing import Routed
from kvasir.experts import ExpertRange, FloatRows
from kvasir.kernels.api import EncodedRows, RowFormat
from kvasir.kernels.sums import BLOCK, Exponents, sum_outputs
from kvasir.wire.codec import encode
from kvasir.wire.frames import Dispatch, Frame, HalfRows, ReplyType, Result, SumOrder, SumResult, f16_reply
from kvasir.wire.header import PROTOCOL_LIMITS
from kvasir.wire.split import split_dispatch


class Reply(StrEnum):
    """The form of workers' answers."""

    F32 = "f32"
    F16 = "f16"
    SUM = "sum"


@dataclass(frozen=True, slots=True, eq=False)
class LayerRows:
    """Rows of one call, the experts that they chose, and what those really gave."""

    rows: EncodedRows  # [T, row_bytes]
    routed: Routed  # [T, n_used]
    weights: Weights  # [T, n_used]
    exponents: Exponents  # [T]
    outputs: FloatRows  # [T * n_used, d_model]


@dataclass(slots=True)
class Traffic:
    """What one or more calls took. `n_sent_rows` counts a row once for each worker that it goes to."""

    down: int = 0
    up: int = 0
    n_rows: int = 0
    n_sent_rows: int = 0
    n_pairs: int = 0
    n_hot: int = 0

    def __iadd__(self, other: Traffic) -> Traffic:
        self.down += other.down
        self.up += other.up
        self.n_rows += other.n_rows
        self.n_sent_rows += other.n_sent_rows
        self.n_pairs += other.n_pairs
        self.n_hot += other.n_hot
        return self


def workers_of_layer(n_workers: int, n_expert: int) -> ReplicaMap:
    """Each worker holds one range of layer 0, all as large."""
    size = n_expert // n_workers
    return ReplicaMap.build({f"w{n:02}": [ExpertRange(0, n * size, (n + 1) * size)] for n in range(n_workers)})


def call_traffic(call: LayerRows, coverage: ReplicaMap, reply: Reply, hot: Collection[int]) -> Traffic:
    """Frames of one call both ways, headers included; `routed` names experts by the places that workers hold."""
    placement = place(0, call.routed, coverage, coverage.held.keys(), hot=hot)
    traffic = Traffic(n_rows=len(call.rows), n_pairs=call.routed.size, n_hot=len(placement.hot_slots))
    for batch in placement.batches:
        traffic.n_sent_rows += len(batch.rows)
        for sent, answered in _frames(call, batch, reply):
            traffic.down += _n_bytes(sent)
            traffic.up += _n_bytes(answered)
    return traffic


def _frames(call: LayerRows, batch: DispatchBatch, reply: Reply) -> list[tuple[Frame, Frame]]:
    d_model = call.outputs.shape[1]
    order = None
    if reply is Reply.SUM:
        order = SumOrder(call.weights.reshape(-1)[batch.pair_slots], call.exponents[batch.rows])
    parts = split_dispatch(call.rows[batch.rows], batch.pair_rows, batch.pair_ids, d_model, PROTOCOL_LIMITS, order)
    frames: list[tuple[Frame, Frame]] = []
    for part in parts:
        asked = ReplyType.F16 if reply is Reply.F16 else ReplyType.F32
        pairs = part.pair_rows, part.pair_ids
        sent = Dispatch(1, 0, RowFormat.KX1, d_model, part.rows, *pairs, reply=asked, sums=part.sums)
        outputs = call.outputs[batch.pair_slots[part.pairs]]
        frames.append((sent, _answer(outputs, part.pair_rows, part.sums, reply)))
    return frames


def _answer(outputs: FloatRows, pair_rows: np.ndarray, sums: SumOrder | None, reply: Reply) -> Frame:
    if sums is not None:
        return SumResult(1, 0, len(outputs), sum_outputs(outputs, sums.weights, pair_rows, sums.exponents))
    if reply is Reply.F16:
        rounded, fits = f16_reply(outputs)
        halves: FloatRows | HalfRows = rounded.astype(np.float16) if fits else rounded
        return Result(1, 0, halves)
    return Result(1, 0, outputs)


def _n_bytes(frame: Frame) -> int:
    return sum(memoryview(part).nbytes for part in encode(frame))


def bits_of_value(n_up_bytes: int, n_rows: int, d_model: int) -> float:
    """Return the mean width of a packed value, given the rows of sums and the bytes they took."""
    return 8 * (n_up_bytes / n_rows - d_model / BLOCK) / d_model
