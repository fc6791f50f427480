"""The hot experts: those that the backbone computes itself while the rest of a layer's rows travel.

Dispatchers read the plan and report their layer calls. Every PLAN_EVERY calls a thread of the cache makes a new plan,
reads the new experts' pages, and then puts the plan in force by one assignment: no step waits for a plan or for the
disk. Outputs computed here have the bits that any worker would have given.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import overload

import numpy as np

from backbone.engine.dispatch.call_samples import Calls, CallSamples
from backbone.engine.dispatch.hot_plan import HotExperts, costs_of, plan_bytes, plan_hot
from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.swarm.placement import IntArray
from backbone.engine.swarm.transport import Transport
from backbone.engine.trust.background import Background

NO_EXPERTS: frozenset[int] = frozenset()
PLAN_EVERY = 2048  # layer calls
AVERAGE_WEIGHT = 1 / 64  # of a new time in the moving average
FADES = 255 / 256  # of earlier waits, with each new one
PAUSE_S = 0.002  # between the layers of a plan; planning a layer takes a fraction of that
FIRST_OWN_S = 2e-4  # of a pair, before one was computed here
Clocks = tuple[float, float]


class HotCache:
    """The hot experts of a backbone process, shared by its dispatchers on one thread. `close` it in the end."""

    def __init__(
        self, store: ExpertStore, transport: Transport, budget_bytes: int, *, plan_every: int = PLAN_EVERY
    ) -> None:
        """`budget_bytes` bounds the experts of a plan, in bytes of the model's file."""
        card = store.card
        self.budget_bytes = budget_bytes
        self.samples = CallSamples(card.n_layer, card.n_expert)
        self._store = store
        self._transport = transport
        self._plan_every = plan_every
        self._shape = card.n_layer, card.n_expert
        sizes = {layer.layer: layer.expert_bytes for layer in card.layers}
        self._bytes_by_layer = [sizes.get(layer, 0) for layer in range(card.n_layer)]
        self._plan: HotExperts = (NO_EXPERTS,) * card.n_layer
        self._n_noted = 0
        self._own_s: float | None = None
        self._waited_s, self._busy_s = 1e-9, 0.0  # waiting, and the thread's CPU time within it; both fade
        self._background = Background("kvasir-hot", max_waiting=1)
        self._lock = threading.Lock()

    @property
    def plan(self) -> HotExperts:
        """The plan in force."""
        return self._plan

    @property
    def n_experts(self) -> int:
        """Number of hot experts."""
        return sum(map(len, self._plan))

    @property
    def n_bytes(self) -> int:
        """Bytes of the hot experts."""
        return plan_bytes(self._plan, self._bytes_by_layer)

    def experts(self, layer: int) -> frozenset[int]:
        """Return the hot experts of a layer."""
        return self._plan[layer]

    def note_call(self, layer: int, expert_ids: IntArray) -> None:
        """Note a layer call with experts [T, n_used]; every `plan_every` calls start a new plan on another thread."""
        self.samples.add(layer, expert_ids)
        self._n_noted += 1
        if self._n_noted % self._plan_every == 0:
            self._background.offer(self.replan)  # refused while the last plan is still being made

    def note_own(self, n_pairs: int, seconds: float) -> None:
        """Note that `n_pairs` computed here took `seconds`."""
        per_pair = seconds / n_pairs
        known = per_pair if self._own_s is None else self._own_s
        self._own_s = known + AVERAGE_WEIGHT * (per_pair - known)

    def note_wait(self, begun: Clocks) -> None:
        """Note that the answers to a layer call have arrived, and were waited for since `begun` (see `clocks`)."""
        wall, cpu = clocks()
        self._waited_s = FADES * self._waited_s + wall - begun[0]
        self._busy_s = FADES * self._busy_s + min(cpu - begun[1], wall - begun[0])

    def replan(self) -> None:
        """Make a plan, read its new experts' pages, and put it in force. Blocks: runs on the cache's thread."""
        with self._lock:
            calls = _PacedCalls([self.samples.calls(layer) for layer in range(self.samples.n_layer)])
            own_s = FIRST_OWN_S if self._own_s is None else self._own_s
            coverage, measured = self._transport.coverage(), self._transport.measurements()
            costs = costs_of(self._shape, coverage, measured, own_s, 1.0 - self._busy_s / self._waited_s)
            before = self._plan
            plan = plan_hot(calls, costs, self._bytes_by_layer, self.budget_bytes, before)
            for layer, hot in enumerate(plan):
                self._store.read_pages(layer, np.array(sorted(hot - before[layer]), np.int32))
            self._plan = plan

    def close(self) -> None:
        """End the thread."""
        self._background.close()


class _PacedCalls(Sequence[Calls]):
    """Samples by layer. Reading a layer pauses first, so that a plan never competes with a step for long."""

    def __init__(self, calls: list[Calls]) -> None:
        self._calls = calls

    def __len__(self) -> int:
        return len(self._calls)

    @overload
    def __getitem__(self, layer: int) -> Calls: ...
    @overload
    def __getitem__(self, layer: slice) -> Sequence[Calls]: ...
    def __getitem__(self, layer: int | slice) -> Calls | Sequence[Calls]:
        time.sleep(PAUSE_S)
        return self._calls[layer]


def clocks() -> Clocks:
    """Return the readings of the running loop's clock and of this thread's CPU clock, in seconds."""
    return asyncio.get_running_loop().time(), time.thread_time()
