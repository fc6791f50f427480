"""Measure what an emulated worker and its link are like, and how long bytes take on their way. Pure: time comes in.

`emulator.worker` sends through these.
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


# Times are for a row-expert of 3072 x 1024, which is 19 million operations on 5.3 MB of weights.
# A phone, assumed: 6 thousand million operations a second in WebAssembly, a sixth of a laptop's core.
PHONE = WorkerClass("phone", pair_s=3e-3, call_s=1e-3)
# A tab on a laptop without a GPU, one thread. Measured: `bench_webgpu --only wasm` takes 0.3 ms of a server's core for
# each of 64 rows of an expert, 0.4 of 8 and 0.5 to 0.6 for one. A frame's way through the tab's threads is assumed.
BROWSER = WorkerClass("browser", pair_s=0.5e-3, call_s=2e-3)
# A desktop whose GPU shares the machine's memory, assumed: 5.3 MB at 50 GB/s.
DESKTOP = WorkerClass("desktop", pair_s=0.1e-3, call_s=1e-3)
# A graphics card, assumed, as none was at hand to be measured: 5.3 MB at 260 GB/s, as if each row read its expert
# again.
# Upload, launch and reading back are in the time of a frame.
GPU = WorkerClass("gpu", pair_s=0.02e-3, call_s=1e-3)
WIFI_BYTES_S = 100e6 / 8
CABLE_BYTES_S = 500e6 / 8
# By the name of a class: itself, and the bytes a second of the line that it usually has.
CLASSES = {
    PHONE.name: (PHONE, WIFI_BYTES_S),
    BROWSER.name: (BROWSER, WIFI_BYTES_S),
    DESKTOP.name: (DESKTOP, CABLE_BYTES_S),
    GPU.name: (GPU, CABLE_BYTES_S),
}


class Port:
    """A place that bytes pass one after another."""

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s = bytes_s
        self._is_free_at = 0.0
        self.n_bytes = 0

    def passed(self, now: float, n_bytes: int) -> float:
        """Return when `n_bytes` that come now are through."""
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
        """Return when a frame that leaves now arrives."""
        late = self._link.round_trip_s / 2 + self._link.jitter_s * float(self._rng.random())
        self._last = max(now + late, self._last)
        return self._last
