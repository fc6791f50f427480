"""The model of the emulations: the 122B's block pattern in its true widths, with few layers and experts.

The benchmarks of the emulated swarm open it; the file is made in a folder of theirs and goes with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from backbone.engine.serving.loaded_model import LoadedModel
from benchmarks.shape.model import QUICK, RealShape, model_bytes, require_room, write_real_shape
from kvasir.errors import ConfigError

TRUE_WIDTHS = replace(RealShape(), n_expert=32)
TINY = QUICK
N_PROMPT = 4
OWN_BYTES = 3 << 30  # states of 64 sequences, answers under way and Python


def describe(shape: RealShape) -> str:
    """The model in words, for a line of figures."""
    sizes = f"d_model {shape.d_model}, {shape.n_expert} experts of {shape.d_ff}, {shape.n_used} used"
    return f"qwen35moe, {shape.n_layer} layers, {sizes}, random weights"


@contextmanager
def emulated_model(folder: Path, shape: RealShape, n_slot: int, n_ctx: int = 64) -> Iterator[LoadedModel]:
    """Make the model in `folder` and open it with one thread. Raises ConfigError where disk or memory are too small."""
    require_room(folder, model_bytes(shape))
    available = psutil.virtual_memory().available
    needed = model_bytes(shape) + (OWN_BYTES if shape is TRUE_WIDTHS else 0)
    if available < needed:
        raise ConfigError(f"{available / 1e9:.1f} GB of memory are free; this needs {needed / 1e9:.1f} GB")
    path = write_real_shape(folder / "model.gguf", shape)
    with LoadedModel.open(path, n_slot=n_slot, n_ctx=n_ctx, n_threads=1) as loaded:
        yield loaded


def prompts(n: int) -> tuple[tuple[int, ...], ...]:
    """Different prompts of N_PROMPT tokens."""
    return tuple(tuple((31 * row + 17 * column) % 251 + 1 for column in range(N_PROMPT)) for row in range(n))
