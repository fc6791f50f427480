"""Keys, values and recurrent state of the running sequences, by slot.

The engine allocates a slot for a sequence and frees it. The model marks the slots of a batch as in use while a forward
runs, and extends them when it is done. Nothing here computes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from backbone.engine.ops.devices import CPU
from backbone.engine.ops.interface import KVLayer, Segment
from backbone.engine.ops.model_config import AttentionConfig, GatedDeltaConfig, ModelConfig
from kvasir.errors import ConfigError, RequestError


@dataclass(frozen=True, slots=True, eq=False)
class DeltaLayer:
    """The state of one gated-delta layer by slot."""

    conv: Tensor  # [n_slot, conv_width - 1, n_conv_channel], the last inputs of the convolution
    state: Tensor  # [n_slot, n_v_head, d_v, d_k]

    def reset(self, slot: int) -> None:
        """Clear a slot: the state before the first token."""
        self.conv[slot].zero_()
        self.state[slot].zero_()


class DeltaRows(NamedTuple):
    """The inputs of a gated-delta layer's state, of some rows of one sequence."""

    mixed: Tensor  # [n, n_conv_channel], before the convolution
    alpha: Tensor  # [n, n_v_head]
    beta: Tensor  # [n, n_v_head]

    def part(self, start: int, stop: int) -> DeltaRows:
        """Return some of the rows as views."""
        return DeltaRows(self.mixed[start:stop], self.alpha[start:stop], self.beta[start:stop])

    def copy(self) -> DeltaRows:
        """Return a copy of the rows."""
        return DeltaRows(self.mixed.clone(), self.alpha.clone(), self.beta.clone())


class Kept(NamedTuple):
    """The number of first rows of a slot's tentative segment that stay in the sequence."""

    slot: int
    n_rows: int


LayerState = KVLayer | DeltaLayer


class TensorForm(TypedDict):
    """The type and device of a cache's tensors."""

    dtype: torch.dtype
    device: torch.device


# States are not zeroed here, so that memory is used only as sequences come and grow: a recurrent state is cleared when
# its slot is allocated, and a key or value is only read after it was written.


def _new_kv(mixer: AttentionConfig, n_slot: int, n_ctx: int, form: TensorForm) -> KVLayer:
    shape = (n_slot, mixer.n_kv_head, n_ctx)  # attention reads the keys of a head in order
    return KVLayer(torch.empty(*shape, mixer.d_head, **form), torch.empty(*shape, mixer.d_head_v, **form))


def _new_delta(mixer: GatedDeltaConfig, n_slot: int, _n_ctx: int, form: TensorForm) -> DeltaLayer:
    return DeltaLayer(
        torch.empty(n_slot, mixer.conv_width - 1, mixer.n_conv_channel, **form),
        torch.empty(n_slot, mixer.n_v_head, mixer.d_v, mixer.d_k, **form),
    )


# Makes a layer's state, by the kind of its mixer.
_NEW_STATE: Mapping[type, Callable[[Any, int, int, TensorForm], LayerState]] = {
    AttentionConfig: _new_kv,
    GatedDeltaConfig: _new_delta,
}


class SlotStatus(Enum):
    """The state of a slot; the value stands in error messages."""

    FREE = "free"
    READY = "ready"
    IN_USE = "in use by a forward"
    TENTATIVE = "waiting for the decision which of its rows are kept"
    BROKEN = "half-written by a forward that failed; free or reset it"


class SlotCache:
    """The state of up to `n_slot` sequences of up to `n_ctx` tokens. Not thread-safe: one event loop owns it."""

    def __init__(
        self, config: ModelConfig, *, n_slot: int, n_ctx: int, dtype: torch.dtype, device: torch.device = CPU
    ) -> None:
        if n_slot < 1 or n_ctx < 1:
            raise ConfigError(
                f"a cache of {n_slot} slots of {n_ctx} tokens cannot hold a sequence; both must be 1 or more"
            )
        self.n_slot = n_slot
        self.n_ctx = n_ctx
        form = TensorForm(dtype=dtype, device=device)
        self._states = [_NEW_STATE[type(layer.mixer)](layer.mixer, n_slot, n_ctx, form) for layer in config.layers]
        self._status = [SlotStatus.FREE] * n_slot
        self._lengths = [0] * n_slot
        self._n_tentative = [0] * n_slot  # rows
        self._delta_rows: dict[tuple[int, int], DeltaRows] = {}  # of tentative segments, by slot and layer
        self._delta_copy: DeltaLayer | None = None  # reused: new pages would cost many times the copying
        self._free = list(range(n_slot))  # a heap: the lowest slot is taken first

    @property
    def n_free(self) -> int:
        """Return the number of free slots."""
        return len(self._free)

    @property
    def n_bytes(self) -> int:
        """Return the bytes of all slots when they are full."""
        return sum(tensor.nbytes for tensor in self._tensors())

    @property
    def slot_bytes(self) -> int:
        """Return the bytes of one full slot."""
        return self.n_bytes // self.n_slot

    @property
    def recurrent_bytes(self) -> int:
        """Return the bytes of a slot's recurrent state, which do not depend on its length."""
        recurrent = (state for state in self._states if isinstance(state, DeltaLayer))
        return sum(state.conv.nbytes + state.state.nbytes for state in recurrent) // self.n_slot

    def state(self, layer: int) -> LayerState:
        """Return a layer's state, for all slots."""
        return self._states[layer]

    def allocate(self) -> int:
        """Take a cleared slot for a new sequence. Raises RequestError when none is free."""
        if not self._free:
            raise RequestError(f"all {self.n_slot} slots are in use; a sequence has to end first")
        slot = heapq.heappop(self._free)
        self._status[slot] = SlotStatus.READY
        self._clear(slot)
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back."""
        self._check_idle(slot)
        self._status[slot] = SlotStatus.FREE
        self._drop_tentative(slot)
        heapq.heappush(self._free, slot)

    def reset(self, slot: int) -> None:
        """Forget the sequence in a slot and keep the slot."""
        self._check_idle(slot)
        self._status[slot] = SlotStatus.READY
        self._clear(slot)

    def length(self, slot: int) -> int:
        """Return how many tokens of the sequence are in the cache."""
        self._check_number(slot)
        return self._lengths[slot]

    @contextmanager
    def using(self, segments: Sequence[Segment], n_tentative: int = 0) -> Iterator[None]:
        """Hold the slots of a forward: extend them when it succeeds, else mark them as broken until they are reset.

        The slots of the last `n_tentative` segments keep their lengths until `settling`.

        Raises RequestError, and holds nothing, when a slot is not ready, occurs twice, would become too long, or has
        another length than its segment's position.
        """
        self._check_segments(segments)
        for segment in segments:
            self._status[segment.slot] = SlotStatus.IN_USE
        outcome = SlotStatus.BROKEN
        try:
            yield
            outcome = SlotStatus.READY
        finally:
            n_firm = len(segments) - n_tentative
            for number, segment in enumerate(segments):
                self._status[segment.slot] = outcome
                if outcome is not SlotStatus.READY:
                    continue
                if number < n_firm:
                    self._lengths[segment.slot] += segment.n_rows
                else:
                    self._status[segment.slot] = SlotStatus.TENTATIVE
                    self._n_tentative[segment.slot] = segment.n_rows

    @contextmanager
    def settling(self, kept: Sequence[Kept]) -> Iterator[None]:
        """Hold tentative slots while their kept rows join the sequences; mark the slots as broken when that fails.

        Keys and values of rows that are not kept stay beyond the sequence's end, where nothing reads them and its next
        rows overwrite them. Raises RequestError, and holds nothing, when a slot is not tentative or has fewer rows.
        """
        for slot, n_rows in kept:
            self._check_number(slot)
            if self._status[slot] is not SlotStatus.TENTATIVE or not 0 <= n_rows <= self._n_tentative[slot]:
                raise RequestError(
                    f"slot {slot} is {self._status[slot].value}, with {self._n_tentative[slot]} tentative rows; "
                    f"{n_rows} cannot be kept"
                )
        for slot, _ in kept:
            self._status[slot] = SlotStatus.BROKEN
        yield
        for slot, n_rows in kept:
            self._lengths[slot] += n_rows
            self._status[slot] = SlotStatus.READY
            self._drop_tentative(slot)

    def delta_copy(self, layer: int, slots: Sequence[int]) -> DeltaLayer:
        """Copy a recurrent layer's state of some slots, [len(slots), ...], to work on; valid until the next call."""
        state, copy, n = self._states[layer], self._delta_copy, len(slots)
        if not isinstance(state, DeltaLayer):
            raise TypeError(f"layer {layer} has no recurrent state")
        wanted = [(n, *tensor.shape[1:]) for tensor in (state.conv, state.state)]
        if copy is None or len(copy.conv) < n or [(n, *t.shape[1:]) for t in (copy.conv, copy.state)] != wanted:
            copy = self._delta_copy = DeltaLayer(*(state.conv.new_empty(shape) for shape in wanted))
        for number, slot in enumerate(slots):
            copy.conv[number].copy_(state.conv[slot])
            copy.state[number].copy_(state.state[slot])
        return DeltaLayer(copy.conv[:n], copy.state[:n])

    def put_delta_rows(self, slot: int, layer: int, rows: DeltaRows) -> None:
        """Keep the rows of a tentative slot, from which a recurrent layer computes the kept ones again."""
        self._delta_rows[slot, layer] = rows

    def delta_rows(self, slot: int, layer: int) -> DeltaRows:
        """Return the rows that were put for a tentative slot."""
        return self._delta_rows[slot, layer]

    def _check_segments(self, segments: Sequence[Segment]) -> None:
        if len({segment.slot for segment in segments}) != len(segments):
            raise RequestError(f"a slot occurs twice in a batch: {[segment.slot for segment in segments]}")
        for segment in segments:
            self._check_number(segment.slot)
            status, length = self._status[segment.slot], self._lengths[segment.slot]
            if status is not SlotStatus.READY:
                raise RequestError(f"slot {segment.slot} is {status.value}")
            if segment.position != length:
                raise RequestError(
                    f"slot {segment.slot} holds {length} tokens, the batch goes on at {segment.position}"
                )
            if length + segment.n_rows > self.n_ctx:
                raise RequestError(
                    f"slot {segment.slot} would hold {length + segment.n_rows} tokens, there is room for {self.n_ctx}"
                )

    def _check_number(self, slot: int) -> None:
        if not 0 <= slot < self.n_slot:
            raise RequestError(f"slot {slot} does not exist; slots are 0 to {self.n_slot - 1}")

    def _check_idle(self, slot: int) -> None:
        self._check_number(slot)
        if self._status[slot] in (SlotStatus.FREE, SlotStatus.IN_USE):
            raise RequestError(f"slot {slot} is {self._status[slot].value}")

    def _drop_tentative(self, slot: int) -> None:
        self._n_tentative[slot] = 0
        for layer in range(len(self._states)):
            self._delta_rows.pop((slot, layer), None)

    def _clear(self, slot: int) -> None:
        self._lengths[slot] = 0
        self._drop_tentative(slot)
        for state in self._states:
            if isinstance(state, DeltaLayer):
                state.reset(slot)

    def _tensors(self) -> Iterator[Tensor]:
        for state in self._states:
            yield from (state.keys, state.values) if isinstance(state, KVLayer) else (state.conv, state.state)
