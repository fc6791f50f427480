"""The hot experts: those that the backbone computes itself while the rest of a layer's rows travel.

Dispatchers ask it which they are and tell it what they see; a thread of its own makes a new plan now and then, reads
the new experts' pages, and only then puts the plan in force by one assignment. So no step ever waits for a plan or for
a disk. What is computed here has the bits that any worker would have given.
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

NOBODY: frozenset[int] = frozenset()
PLAN_EVERY = 2048  # layer calls
AVERAGE_WEIGHT = 1 / 64  # of a new time in the moving average
FADES = 255 / 256  # what is left of earlier waits with each new one
PAUSE_S = 0.002  # between the layers of a plan, each of which takes a fraction of that
FIRST_OWN_S = 2e-4  # of a pair, before one was computed here
Clocks = tuple[float, float]


class HotCache:
    """One for a backbone process, shared by its dispatchers, which are on one thread. `close` it in the end."""

    def __init__(
        self, store: ExpertStore, transport: Transport, budget_bytes: int, *, plan_every: int = PLAN_EVERY
    ) -> None:
        """`budget_bytes` bounds the experts of a plan, as they are in the model's file."""
        card = store.card
        self.budget_bytes = budget_bytes
        self.samples = CallSamples(card.n_layer, card.n_expert)
        self._store = store
        self._transport = transport
        self._plan_every = plan_every
        self._shape = card.n_layer, card.n_expert
        sizes = {layer.layer: layer.expert_bytes for layer in card.layers}
        self._bytes_by_layer = [sizes.get(layer, 0) for layer in range(card.n_layer)]
        self._plan: HotExperts = (NOBODY,) * card.n_layer
        self._n_noted = 0
        self._own_s: float | None = None
        self._waited_s, self._busy_s = 1e-9, 0.0  # of it; both fade
        self._background = Background("kvasir-hot", max_waiting=1)
        self._lock = threading.Lock()

    @property
    def plan(self) -> HotExperts:
        """The plan in force."""
        return self._plan

    @property
    def n_experts(self) -> int:
        """How many experts are hot now."""
        return sum(map(len, self._plan))

    @property
    def n_bytes(self) -> int:
        """How many bytes they have."""
        return plan_bytes(self._plan, self._bytes_by_layer)

    def experts(self, layer: int) -> frozenset[int]:
        """The hot experts of a layer."""
        return self._plan[layer]

    def note_call(self, layer: int, expert_ids: IntArray) -> None:
        """A layer call: experts [T, n_used]. Once in a while it has a new plan made, elsewhere."""
        self.samples.add(layer, expert_ids)
        self._n_noted += 1
        if self._n_noted % self._plan_every == 0:
            self._background.offer(self.replan)  # not taken when the last plan is still being made

    def note_own(self, n_pairs: int, seconds: float) -> None:
        """Pairs were computed here."""
        per_pair = seconds / n_pairs
        known = per_pair if self._own_s is None else self._own_s
        self._own_s = known + AVERAGE_WEIGHT * (per_pair - known)

    def note_wait(self, begun: Clocks) -> None:
        """A layer's answers are there, for which it was waited since `begun` (see `clocks`)."""
        wall, cpu = clocks()
        self._waited_s = FADES * self._waited_s + wall - begun[0]
        self._busy_s = FADES * self._busy_s + min(cpu - begun[1], wall - begun[0])

    def replan(self) -> None:
        """Make a plan, read what is new in it, put it in force. On a thread of its own, but for tests."""
        with self._lock:
            calls = _Unhurried([self.samples.calls(layer) for layer in range(self.samples.n_layer)])
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


class _Unhurried(Sequence[Calls]):
    """Samples by layer. Whoever reads a layer pauses first, so that a plan never competes with a step for long."""

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
    """The running loop's clock and this thread's CPU clock, in seconds."""
    return asyncio.get_running_loop().time(), time.thread_time()
