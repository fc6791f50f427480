"""The routed experts of a model's MTP head, which the backbone computes from the file.

No worker gets them, so that a draft never waits for one. `loaded_model` opens them.
"""

from __future__ import annotations

import logging
from typing import Self

import numpy as np
import torch

from backbone.engine.model.architectures import read_config
from backbone.engine.ops.model_config import ModelConfig
from kvasir.gguf.index import GGUFIndex
from kvasir.kernels.api import ExpertKernel, LoadedExperts
from kvasir.kernels.registry import kernel_for
from kvasir.slicing.expert_tensors import ExpertTensors, find_expert_tensors, layer_experts

logger = logging.getLogger(__name__)


class MtpExperts:
    """Implement `ExpertCaller` for one layer, without waiting."""

    def __init__(self, kernel: ExpertKernel, loaded: LoadedExperts) -> None:
        self._kernel = kernel
        self._loaded = loaded

    @classmethod
    def open(cls, index: GGUFIndex, n_threads: int | None = None) -> Self | None:
        """Open the experts of a file's MTP head; return None, with a line in the debug log, if no head is supported.

        Raises KernelError when no kernel computes them, GGUFError when the file's metadata are invalid.
        """
        config = read_config(index.metadata)
        tensors = _head_tensors(index, config)
        if tensors is None:
            if config.n_mtp_layer:
                logger.debug("%s with %d MTP layers: not supported", config.architecture, config.n_mtp_layer)
            return None
        experts = layer_experts(index, tensors)
        kernel = kernel_for([experts], n_threads)
        return cls(kernel, kernel.load(experts))

    async def submit(self, layer: int, rows: torch.Tensor, expert_ids: torch.Tensor) -> torch.Tensor:
        """Compute rows f32 [T, d_model] with expert_ids [T, n_used]: partials [T, n_used, d_model]."""
        if layer != self._loaded.layer:
            raise ValueError(f"the MTP head's experts are of layer {self._loaded.layer}, layer {layer} is wanted")
        n_rows, n_used = expert_ids.shape
        encoded = self._kernel.encode_rows(np.ascontiguousarray(rows.numpy(), np.float32))
        pair_rows = np.repeat(np.arange(n_rows, dtype=np.int32), n_used)
        pair_ids = np.ascontiguousarray(expert_ids.numpy().reshape(-1), np.int32)
        return torch.from_numpy(self._loaded.compute(encoded, pair_rows, pair_ids).reshape(n_rows, n_used, -1))


def has_mtp_head(index: GGUFIndex, config: ModelConfig) -> bool:
    """Return whether a file has an MTP head that is supported. A conversion may have dropped its experts."""
    return _head_tensors(index, config) is not None


def _head_tensors(index: GGUFIndex, config: ModelConfig) -> ExpertTensors | None:
    if config.mtp_layer is None:
        return None
    layer = config.mtp_layer.layer
    return find_expert_tensors(index, layer + 1).get(layer)
