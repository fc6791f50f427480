"""Write a model with the experts of its layers in another order: the same model except for rounding in its router.

Workers hold ranges of consecutive experts. If experts that rows use together are neighbours, a row goes to fewer
workers. `manage.py renumber_experts` calls it. The new file has another fingerprint, so the swarm takes it for another
model.
"""

from __future__ import annotations

import mmap
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kvasir.errors import ConfigError, GGUFError
from kvasir.gguf.index import GGUFIndex, TensorInfo

_NAME = re.compile(r"blk\.(\d+)\.(?:ffn_\w+_exps|ffn_gate_inp|exp_probs_b)(?:\.\w+)?$")


def renumber_experts(source: Path, target: Path, orders: Mapping[int, Sequence[int]]) -> None:
    """Write `source` to `target` with expert `orders[layer][i]` of a layer as its number i; other layers stay.

    Raises GGUFError for a file that cannot be read or is split, and ConfigError for an order that is not a permutation
    of the layer's experts, or for a layer without experts. `target` appears once it is complete.
    """
    with GGUFIndex.open(source) as index:
        if len(index.parts) > 1:
            raise GGUFError(f"{source} is split into {len(index.parts)} files; one is needed")
        moved = [(info, np.asarray(orders[layer])) for layer, info in _of_experts(index) if layer in orders]
        missing = set(orders) - {layer for layer, _ in _of_experts(index)}
        if missing:
            raise ConfigError(f"layers {sorted(missing)} of {source} have no experts")
        for info, order in moved:
            _check_order(info, order)
        unfinished = target.with_name(f"{target.name}.part")
        shutil.copyfile(source, unfinished)
        with unfinished.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
            for info, order in moved:
                _write(index, info, order, mapping)
            mapping.flush()
    unfinished.replace(target)


def _of_experts(index: GGUFIndex) -> list[tuple[int, TensorInfo]]:
    """Return the tensors whose outermost dimension is the expert, with their layers."""
    named = [(_NAME.fullmatch(name), info) for name, info in index.tensors.items()]
    return [(int(match[1]), info) for match, info in named if match]


def _check_order(info: TensorInfo, order: np.ndarray) -> None:
    n_expert = info.shape[0]
    if order.shape != (n_expert,) or not np.array_equal(np.sort(order), np.arange(n_expert)):
        raise ConfigError(f"{info.name} has {n_expert} experts; the order must name each once")


def _write(index: GGUFIndex, info: TensorInfo, order: np.ndarray, mapping: mmap.mmap) -> None:
    """Copy one expert at a time, to keep memory small."""
    n_bytes = info.n_bytes // info.shape[0]
    for place, expert in enumerate(order.tolist()):
        at = info.offset + place * n_bytes
        mapping[at : at + n_bytes] = index.read_at(info.part, info.offset + expert * n_bytes, n_bytes)
