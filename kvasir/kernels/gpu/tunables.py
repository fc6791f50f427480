"""The tuning of a GPU: a short measurement, remembered for the next start.

Called by `backend` when a GPU kernel is made. A wrong choice costs time, never a bit.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Quant

from kvasir.experts import ExpertStack, LayerExperts
from kvasir.kernels.api import LoadedExperts
from kvasir.kernels.gpu.kernel import GpuKX1Kernel
from kvasir.kernels.gpu.shaders import LANES_ALLOWED
from kvasir.kernels.gpu.tables import Tunables
from kvasir.kernels.selftest_inputs import made_weights, plain_rows

D_MODEL, D_FF = 1024, 512
LANES_TRIED = (1, 4, 16)
TILED_TRIED = (8, 16, 32)
REPEATS = 3

logger = logging.getLogger(__name__)


def tune(kernel: GpuKX1Kernel, memory: Path | None = None) -> Tunables:
    """Set and return the tunables remembered for this device in the file `memory`, else measured ones."""
    path = default_memory() if memory is None else memory
    remembered = _read(path)
    tunables = _tunables(remembered.get(kernel.device.name))
    if tunables is None:
        tunables = measure(kernel)
        entry = {"lanes": tunables.lanes, "tiled_from": tunables.tiled_from}
        _write(path, {**remembered, kernel.device.name: entry})
        logger.info("%s: %s", kernel.device.name, tunables)
    kernel.set_tunables(tunables)
    return tunables


def default_memory() -> Path:
    """Return the file that tunables are remembered in, in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "kvasir" / "gpu_tunables.json"


def measure(kernel: GpuKX1Kernel, time_call: Callable[[LoadedExperts, int], float] | None = None) -> Tunables:
    """Measure a few choices on a generated expert; `time_call` returns the seconds of a call of n pairs."""
    timed = time_call or seconds_of_call
    loaded = kernel.load(_made_expert())

    def cost(lanes: int, tiled_from: int, n_pairs: int) -> float:
        kernel.set_tunables(Tunables(lanes, tiled_from))
        return timed(loaded, n_pairs)

    never = 1 << 30
    lanes = min(LANES_TRIED, key=lambda n: cost(n, never, 1))
    better = [n for n in TILED_TRIED if cost(lanes, n, n) < cost(lanes, never, n)]
    return Tunables(lanes, better[0] if better else 4 * TILED_TRIED[-1])


def seconds_of_call(loaded: LoadedExperts, n_pairs: int, local_ids: Sequence[int] = (0,)) -> float:
    """Return the shortest time of a few calls with `n_pairs` generated rows, after one warm-up call."""
    n_blocks = loaded.d_model // 256
    rows = np.tile(_packed_block(), (n_pairs, n_blocks))
    numbers = np.arange(n_pairs, dtype=np.int32)
    ids = np.resize(np.array(local_ids, np.int32), n_pairs)
    shortest = float("inf")
    for turn in range(REPEATS + 1):
        begin = time.perf_counter()
        loaded.compute(rows, numbers, ids)
        if turn:
            shortest = min(shortest, time.perf_counter() - begin)
    return shortest


def _packed_block() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return one packed block of ordinary values: generated codes, multipliers of 8, exponent 127."""
    codes = plain_rows(1, 64, 7).view(np.uint8).reshape(-1) | 1
    return np.concatenate([np.where(codes == 0x80, 1, codes), np.array([0x88] * 4 + [127])]).astype(np.uint8)


def _made_expert() -> LayerExperts:
    def stack(n_out: int, n_in: int, seed: int) -> ExpertStack:
        return ExpertStack(Quant.Q4_K, n_out, n_in, made_weights(Quant.Q4_K, n_out, n_in, seed)[None])

    return LayerExperts(0, stack(D_FF, D_MODEL, 1), stack(D_FF, D_MODEL, 2), stack(D_MODEL, D_FF, 3))


def _tunables(entry: object) -> Tunables | None:
    """Parse a remembered entry; return None if this version did not write it."""
    if not isinstance(entry, Mapping):
        return None
    lanes, tiled_from = entry.get("lanes"), entry.get("tiled_from")
    if not isinstance(lanes, int) or not isinstance(tiled_from, int) or lanes not in LANES_ALLOWED:
        return None
    return Tunables(lanes, tiled_from) if 1 <= tiled_from <= 4 * TILED_TRIED[-1] else None


def _read(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(path: Path, content: Mapping[str, object]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        logger.info("GPU tunables could not be saved: %s", error)
