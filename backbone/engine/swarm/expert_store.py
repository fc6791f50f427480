"""The backbone's own replica: every expert of the model, mapped from its file.

It computes what no live worker holds, and what came back late or wrong. Its memory is the page cache, so a file larger
than RAM still runs. `dispatch.dispatcher` calls it.
"""

from __future__ import annotations

import mmap
import threading

import numpy as np
import numpy.typing as npt

from kvasir.gguf.index import GGUFIndex
from kvasir.kernels.api import ExpertKernel, LoadedExperts
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slices import model_experts


class ExpertStore:
    """Experts by layer, prepared when a layer is first needed. Safe to use from several threads."""

    def __init__(self, index: GGUFIndex, card: ModelCard, kernel: ExpertKernel) -> None:
        self._index = index
        self._card = card
        self._kernel = kernel
        self._loaded: dict[int, LoadedExperts] = {}
        self._lock = threading.Lock()

    @property
    def kernel(self) -> ExpertKernel:
        """The kernel that computes here; workers must have its fingerprint."""
        return self._kernel

    @property
    def card(self) -> ModelCard:
        """The facts of the model whose experts these are."""
        return self._card

    def layer(self, layer: int) -> LoadedExperts:
        """Return all experts of one MoE layer; local ids are expert ids.

        Raises KernelError if the kernel refuses them.
        """
        with self._lock:
            loaded = self._loaded.get(layer)
            if loaded is None:
                loaded = self._kernel.load(model_experts(self._index, self._card, layer))
                self._loaded[layer] = loaded
            return loaded

    def read_pages(self, layer: int, expert_ids: npt.NDArray[np.int32]) -> None:
        """Touch every page of some experts, so that a row that needs one soon does not wait for the disk."""
        if not len(expert_ids):
            return
        experts = model_experts(self._index, self._card, layer)
        for stack in (experts.gate, experts.up, experts.down):
            for expert_id in expert_ids.tolist():
                stack.data[expert_id, :: mmap.PAGESIZE].max()
