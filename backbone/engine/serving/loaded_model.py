"""A model file opened for serving: its facts, its dense path, its tokenizer and the backbone's own replica.

Commands, benchmarks and tests build engines from this. It opens nothing but the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

import torch

from backbone.engine.model.model import Model
from backbone.engine.model.mtp_experts import MtpExperts
from backbone.engine.ops.devices import Device, torch_device
from backbone.engine.ops.interface import Ops
from backbone.engine.ops.stable_ops import StableOps
from backbone.engine.ops.torch_ops import TorchOps
from backbone.engine.swarm.expert_store import ExpertStore
from backbone.engine.text.tokenizer import Tokenizer
from kvasir.gguf.index import GGUFIndex
from kvasir.kernels.backend import CPU as CPU_BACKEND
from kvasir.kernels.backend import Backend
from kvasir.kernels.registry import kernel_for, kernel_named
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slices import model_experts
from kvasir.wire.frames import Hello, Role


class Dense(StrEnum):
    """How the dense path computes: KX1 in place with stable rows, torch in bf16 on a CUDA device, torch in f32."""

    KX1 = "kx1"
    FAST = "fast"
    FLOAT = "float"


class KernelChoice(StrEnum):
    """Which expert kernel: by the model's tensor types, or forced."""

    AUTO = "auto"
    KX1 = "kx1"
    FLOAT = "float"


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """Everything of one model file that an engine needs. Close it when the engine is gone."""

    index: GGUFIndex
    card: ModelCard
    tokenizer: Tokenizer
    model: Model
    store: ExpertStore

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        n_slot: int,
        n_ctx: int | None = None,
        dense: Dense = Dense.KX1,
        device: Device = Device.CPU,
        gpu_expert_bytes: int = 0,
        kernel: KernelChoice = KernelChoice.AUTO,
        n_threads: int | None = None,
        has_mtp_head: bool = False,
    ) -> Self:
        """Open a GGUF file with room for `n_slot` sequences of `n_ctx` tokens (default: the model's, at most 4096).

        Dense path and experts use `n_threads` each (default: every usable core); they seldom run at once. With
        `gpu_expert_bytes` of its memory a GPU computes experts, where that is faster; they have the same bits.
        `has_mtp_head`: where the file has an MTP head that is run here, it is loaded to guess tokens; each slot then
        takes a layer more.

        Raises GGUFError or UnsupportedModelError for the file, KernelError when the kernel cannot be used, ConfigError
        for a device that is not there or cannot compute so.
        """
        backend = Backend("auto", gpu_expert_bytes) if gpu_expert_bytes else CPU_BACKEND
        index = GGUFIndex.open(path)
        try:
            card = ModelCard.from_index(index)
            layers = [model_experts(index, card, layer) for layer in card.moe_layers]
            chosen = (
                kernel_for(layers, n_threads, backend)
                if kernel is KernelChoice.AUTO
                else kernel_named(kernel.value, n_threads, backend)
            )
            ops = make_ops(dense, n_threads, device)
            mtp_experts = MtpExperts.open(index, n_threads) if has_mtp_head else None
            n_ctx = n_ctx or min(card.n_ctx, 4096)
            model = Model.load(index, ops, n_slot=n_slot, n_ctx=n_ctx, mtp_experts=mtp_experts)
            return cls(index, card, Tokenizer.from_metadata(index.metadata), model, ExpertStore(index, card, chosen))
        except BaseException:
            index.close()
            raise

    def hello(self) -> Hello:
        """What this backbone says to a worker first."""
        kernel = self.store.kernel
        return Hello(Role.BACKBONE, self.card.fingerprint, kernel.fingerprint, kernel.name)

    def close(self) -> None:
        """Close the file. Nothing of the model may be used after."""
        self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def make_ops(dense: Dense, n_threads: int | None = None, device: Device = Device.CPU) -> Ops:
    """Return the arithmetic of the dense path, and give torch's own pool one thread, as its parts are small.

    Raises ConfigError for a device that is missing or cannot compute so.
    """
    place = torch_device(device, is_exact=dense is Dense.KX1, needs_cuda=dense is Dense.FAST)
    torch.set_num_threads(1)
    if dense is Dense.KX1:
        return StableOps(n_threads=n_threads)
    return TorchOps(torch.float32, place, torch.bfloat16 if dense is Dense.FAST else torch.float32)
