"""What an emulated worker and its link are like, and how long bytes take on their way. Pure: time comes in.

`emulator_worker` sends through these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class WorkerClass:
    """One queue: a frame takes `call_s` and `pair_s` for each of its row-experts."""

    name: str
    pair_s: float
    call_s: float


@dataclass(frozen=True, slots=True)
class LinkClass:
    """A link as both its ends see it. `to_worker` and `to_backbone` are bytes a second.

    Every frame is late by half the round trip and up to `jitter_s` more, but never overtakes another. The connection
    is lost after `lose_after_s` on the average, with all that is under way, and back after `lost_for_s`.
    """

    round_trip_s: float
    jitter_s: float = 0.0
    to_worker: float = math.inf
    to_backbone: float = math.inf
    lose_after_s: float = math.inf
    lost_for_s: float = 1.0


# A phone of 2023 that computes in WebAssembly on its large cores, over Wi-Fi. A row-expert of 3072 x 1024 is 19 million
# operations: these are 6 thousand million a second, a quarter of what one server core gives with AVX-512.
PHONE = WorkerClass("phone", pair_s=3e-3, call_s=1e-3)
WIFI_BYTES_S = 100e6 / 8
# A desktop's GPU, on a wired line.
DESKTOP = WorkerClass("desktop", pair_s=0.1e-3, call_s=1e-3)
CABLE_BYTES_S = 500e6 / 8


class Port:
    """A place that bytes pass one after another."""

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s = bytes_s
        self._is_free_at = 0.0
        self.n_bytes = 0

    def passed(self, now: float, n_bytes: int) -> float:
        """When `n_bytes` that come now are through."""
        self.n_bytes += n_bytes
        self._is_free_at = max(now, self._is_free_at) + n_bytes / self._bytes_s
        return self._is_free_at


class Flight:
    """The way between two ports: delay and jitter, in order."""

    def __init__(self, link: LinkClass, rng: np.random.Generator) -> None:
        self._link = link
        self._rng = rng
        self._last = 0.0

    def arrival(self, now: float) -> float:
        """When a frame that leaves now arrives."""
        late = self._link.round_trip_s / 2 + self._link.jitter_s * float(self._rng.random())
        self._last = max(now + late, self._last)
        return self._last
