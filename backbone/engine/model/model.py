"""A mixture-of-experts model's dense path, written once for every architecture over `interface.Ops`.

The engine calls `Model.forward` with flat rows of many sequences. It is a coroutine that waits for routed experts in
each MoE layer. Its state is local to one forward, so several can be in flight on different slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from backbone.engine.model.architectures import read_config
from backbone.engine.model.batch import Batch, Step
from backbone.engine.model.expert_caller import ExpertCaller
from backbone.engine.model.kv_cache import Kept, SlotCache
from backbone.engine.model.layer import Layer
from backbone.engine.model.loader import DenseTensors, leave_experts
from backbone.engine.model.mtp_head import MtpHead
from backbone.engine.model.mtp_layer import ModelEnds, MtpLayer
from backbone.engine.ops.interface import Ops, RopeTable
from backbone.engine.ops.model_config import ModelConfig, Presence
from kvasir.errors import RequestError
from kvasir.gguf.index import GGUFIndex

__all__ = ["Batch", "Layer", "Model"]


class MtpParts(NamedTuple):
    """The parts of a model's MTP head."""

    layer: MtpLayer
    experts: ExpertCaller  # of that layer; must not wait


class Model:
    """A loaded model and the cache of its running sequences."""

    def __init__(
        self,
        config: ModelConfig,
        ops: Ops,
        cache: SlotCache,
        *,
        ends: ModelEnds,
        layers: Sequence[Layer],
        mtp: MtpParts | None = None,
    ) -> None:
        self.config = config
        self.ops = ops
        self.cache = cache
        self._ends = ends
        self._layers = tuple(layers)
        ropes = config.ropes if mtp is None else config.with_mtp_layer().ropes
        self._ropes = {rope: RopeTable(rope, cache.n_ctx, ops.dtype, ops.device) for rope in ropes}
        self.mtp_head = None if mtp is None else MtpHead(mtp.layer, cache, self._ropes, mtp.experts)

    @classmethod
    def load(
        cls, index: GGUFIndex, ops: Ops, *, n_slot: int, n_ctx: int, mtp_experts: ExpertCaller | None = None
    ) -> Self:
        """Load the model of an open GGUF file, with room for `n_slot` sequences of `n_ctx` tokens.

        Quantised matrices stay views of the file. With `mtp_experts` the file's MTP head is in use: it gets a cache,
        and every tensor of its layer must be known.

        Raises UnsupportedModelError for an architecture, metadata key, value or tensor that is not supported, and
        GGUFError for one that is missing or has another shape.
        """
        config = read_config(index.metadata)
        used = config if mtp_experts is None else config.with_mtp_layer()
        tensors = DenseTensors(index, ops)
        embedding = tensors.rows("token_embd.weight", config.d_model)
        layers = [Layer.load(tensors.below(f"blk.{layer.layer}."), layer, config, ops) for layer in config.layers]
        output_norm = tensors.vector("output_norm.weight", config.d_model)
        is_tied = not tensors.has("output.weight", Presence.OPTIONAL)
        head = embedding if is_tied else tensors.matrix("output.weight", embedding.n_out, config.d_model)
        ends = ModelEnds(embedding, output_norm, ops.make_linear(head))
        mtp = None if mtp_experts is None else MtpParts(MtpLayer.load(tensors, config, ops, ends), mtp_experts)
        leave_experts(index, used, tensors)
        tensors.check_all_taken(used)
        cache = SlotCache(used, n_slot=n_slot, n_ctx=n_ctx, dtype=ops.dtype, device=ops.device)
        return cls(config, ops, cache, ends=ends, layers=layers, mtp=mtp)

    @property
    def n_vocab(self) -> int:
        """Return the number of token ids, which are 0 to n_vocab - 1."""
        return self._ends.embedding.n_out

    async def forward(self, batch: Batch, experts: ExpertCaller, logits_rows: Sequence[int] | None = None) -> Tensor:
        """Run a batch and return the logits [len(logits_rows), n_vocab] of some rows: by default each segment's last.

        The batch's slots grow by its rows, tentative ones by those that `settle` keeps. Raises RequestError, before
        anything is computed, for token ids or rows that do not exist and for slots that cannot take the batch. When it
        is cancelled or an expert call raises, the batch's slots must be freed or reset.
        """
        rows = self._checked_rows(batch, logits_rows)
        ops, ends, eps = self.ops, self._ends, self.config.norm_eps
        with self.cache.using(batch.segments, batch.n_tentative):
            step = Step(batch.segments, self.cache, self._ropes, experts, batch.n_tentative)
            x = ops.embed(ends.embedding, batch.token_ids)  # [T, d_model]
            for layer in self._layers:
                x = await layer.forward(x, step)
            if self.mtp_head is None:
                return ops.linear(ops.rms_norm(x[rows], ends.output_norm, eps), ends.output)[0]
            hidden = ops.rms_norm(x, ends.output_norm, eps)
            logits = ops.linear(hidden[rows], ends.output)[0]
        self.mtp_head.see(batch, hidden)
        return logits

    def settle(self, kept: Sequence[Kept]) -> None:
        """Keep the first rows of tentative slots and drop the others, as if they had never been computed.

        Raises RequestError for slots that are not tentative or have fewer rows.
        """
        with self.cache.settling(kept):
            for layer in self._layers:
                layer.mixer.settle(self.cache, kept)
        if self.mtp_head is not None:
            self.mtp_head.settle(kept)

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
