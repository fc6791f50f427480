"""A mixture-of-experts model's dense path, written once for every architecture over `ops.Ops`.

The engine calls `Model.forward` with flat rows of many sequences. It is a coroutine that waits for routed experts in
each MoE layer; what belongs to one forward is local to it, so several can be in flight on different slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from backbone.engine.arch import read_config
from backbone.engine.batch import Batch
from backbone.engine.expert_caller import ExpertCaller
from backbone.engine.ffn import FFN, load_ffn
from backbone.engine.kv_cache import Kept, SlotCache
from backbone.engine.loader import DenseTensors, leave_experts
from backbone.engine.mixers import Mixer, load_mixer
from backbone.engine.model_config import LayerConfig, ModelConfig, Presence
from backbone.engine.ops import Linear, Ops
from backbone.engine.rope import RopeTable
from backbone.engine.step import Step
from kvasir.errors import RequestError
from kvasir.experts import WeightMatrix
from kvasir.gguf_index import GGUFIndex

__all__ = ["Batch", "Layer", "Model"]


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One layer: two norms, a mixer and an FFN around the residual stream."""

    ops: Ops
    norm_eps: float
    mixer_norm: Tensor  # [d_model]
    mixer: Mixer
    ffn_norm: Tensor  # [d_model]
    ffn: FFN

    @classmethod
    def load(cls, tensors: DenseTensors, layer: LayerConfig, model: ModelConfig, ops: Ops) -> Self:
        """Take the layer's tensors."""
        return cls(
            ops=ops,
            norm_eps=model.norm_eps,
            mixer_norm=tensors.vector("attn_norm.weight", model.d_model),
            mixer=load_mixer(tensors, layer, model, ops),
            ffn_norm=tensors.vector(f"{layer.ffn_norm}.weight", model.d_model),
            ffn=load_ffn(tensors, layer, model, ops),
        )

    async def forward(self, x: Tensor, step: Step) -> Tensor:
        """The residual stream [T, d_model] after this layer."""
        x = x + self.mixer.forward(self.ops.rms_norm(x, self.mixer_norm, self.norm_eps), step)
        return x + await self.ffn.forward(self.ops.rms_norm(x, self.ffn_norm, self.norm_eps), step)


class Model:
    """A loaded model and the cache of its running sequences."""

    def __init__(
        self,
        config: ModelConfig,
        ops: Ops,
        cache: SlotCache,
        *,
        embedding: WeightMatrix,
        layers: Sequence[Layer],
        output_norm: Tensor,
        output: Linear,
    ) -> None:
        self.config = config
        self.ops = ops
        self.cache = cache
        self._embedding = embedding
        self._layers = tuple(layers)
        self._output_norm = output_norm
        self._output = output
        self._ropes = {rope: RopeTable(rope, cache.n_ctx, ops.dtype, ops.device) for rope in config.ropes}

    @classmethod
    def load(cls, index: GGUFIndex, ops: Ops, *, n_slot: int, n_ctx: int) -> Self:
        """The model of an open GGUF file, with room for `n_slot` sequences of `n_ctx` tokens.

        Quantised matrices stay views of the file. Raises UnsupportedModelError for what is not run (an architecture,
        a metadata key or value, a left-over tensor) and GGUFError for what is missing or has another shape.
        """
        config = read_config(index.metadata)
        tensors = DenseTensors(index, ops)
        embedding = tensors.rows("token_embd.weight", config.d_model)
        layers = [Layer.load(tensors.below(f"blk.{layer.layer}."), layer, config, ops) for layer in config.layers]
        output_norm = tensors.vector("output_norm.weight", config.d_model)
        is_tied = not tensors.has("output.weight", Presence.OPTIONAL)
        head = embedding if is_tied else tensors.matrix("output.weight", embedding.n_out, config.d_model)
        leave_experts(index, config, tensors)
        tensors.check_all_taken(config)
        return cls(
            config,
            ops,
            SlotCache(config, n_slot=n_slot, n_ctx=n_ctx, dtype=ops.dtype, device=ops.device),
            embedding=embedding,
            layers=layers,
            output_norm=output_norm,
            output=ops.make_linear(head),
        )

    @property
    def n_vocab(self) -> int:
        """Token ids are 0 to n_vocab - 1."""
        return self._embedding.n_out

    async def forward(self, batch: Batch, experts: ExpertCaller, logits_rows: Sequence[int] | None = None) -> Tensor:
        """Run a batch; returns logits [len(logits_rows), n_vocab] of some rows: by default each segment's last.

        The batch's slots grow by its rows, tentative ones when `settle` says by how many. Raises RequestError, before
        anything is computed, for token ids or rows that do not exist and for slots that cannot take the batch. When it
        is cancelled or an expert call raises, the batch's slots must be freed or reset.
        """
        rows = self._checked_rows(batch, logits_rows)
        with self.cache.using(batch.segments, batch.n_tentative):
            step = Step(batch.segments, self.cache, self._ropes, experts, batch.n_tentative)
            x = self.ops.embed(self._embedding, batch.token_ids)  # [T, d_model]
            for layer in self._layers:
                x = await layer.forward(x, step)
            x = self.ops.rms_norm(x[rows], self._output_norm, self.config.norm_eps)
            return self.ops.linear(x, self._output)[0]

    def settle(self, kept: Sequence[Kept]) -> None:
        """Keep the first rows of tentative slots and forget the others, as if these had never been computed.

        Raises RequestError for slots that are not tentative or have fewer rows.
        """
        with self.cache.settling(kept):
            for layer in self._layers:
                layer.mixer.settle(self.cache, kept)

    def _checked_rows(self, batch: Batch, logits_rows: Sequence[int] | None) -> Tensor:
        lowest, highest = int(batch.token_ids.min()), int(batch.token_ids.max())
        if lowest < 0 or highest >= self.n_vocab:
            wrong = lowest if lowest < 0 else highest
            raise RequestError(f"token id {wrong} does not exist; the vocabulary has {self.n_vocab} tokens")
        rows = batch.last_rows if logits_rows is None else list(logits_rows)
        for row in rows:
            if not 0 <= row < batch.n_rows:
                raise RequestError(f"logits of row {row} are wanted, the batch has rows 0 to {batch.n_rows - 1}")
        return torch.tensor(rows, dtype=torch.int64, device=self.ops.device)
