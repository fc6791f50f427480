"""A model's experts dealt out evenly to workers on this machine: as slices for `manage.py demo`, as budgets for
`manage.py up`, whose workers fetch what the market gives them.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from kvasir.errors import KvasirError
from kvasir.experts import ExpertRange
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.budget import WORKER_OVERHEAD_BYTES
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slice_file import SliceFile
from kvasir.slicing.slices import plan_slice, write_slice


def cut_shares(model: Path, n_shares: int, directory: Path) -> list[Path]:
    """One slice file for each share of every layer's experts; a file that holds just that already is left alone.

    Raises GGUFError or UnsupportedModelError for the model.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    with GGUFIndex.open(model) as index:
        card = ModelCard.from_index(index)
        bounds = [card.n_expert * number // n_shares for number in range(n_shares + 1)]
        for start, stop in pairwise(bounds):
            if start == stop:
                continue  # more shares than experts
            path = directory / f"{card.fingerprint[:12]}-experts-{start}-{stop}.gguf"
            ranges = tuple(ExpertRange(layer, start, stop) for layer in card.moe_layers)
            if not _holds(path, card.fingerprint, ranges):
                write_slice(plan_slice(index, card, ranges), path)
            paths.append(path)
    return paths


def share_budget(model: Path, n_shares: int) -> int:
    """Bytes of memory for one of `n_shares` workers that hold all experts together, its own overhead included.

    One expert more than the share: budgets hold whole experts, and half an expert in each is of no use to anybody.
    Raises GGUFError or UnsupportedModelError for the model.
    """
    with GGUFIndex.open(model) as index:
        card = ModelCard.from_index(index)
    routed = sum(layer.expert_bytes * card.n_expert for layer in card.layers)
    largest = max(layer.expert_bytes for layer in card.layers)
    return WORKER_OVERHEAD_BYTES + -(-routed // n_shares) + largest


def forget_work(directory: Path) -> None:
    """Let local workers register again, since their nodes belong to another run. Their slice caches stay."""
    for state in directory.glob("*/state.json"):
        state.unlink()


def _holds(path: Path, fingerprint: str, ranges: tuple[ExpertRange, ...]) -> bool:
    """Return whether this file is a sound slice of that model with these experts."""
    if not path.exists():
        return False
    try:
        with SliceFile.open(path) as held:
            return held.model_fingerprint == fingerprint and held.facts.ranges == ranges
    except KvasirError:
        return False
