"""The layer of a multi-token-prediction (MTP) head: from a token and the hidden state before it to the token after it.

`mtp_head` runs it for drafts. At position p it takes the token of p + 1 and the hidden state of p, as the output head
does; its own hidden state stands for that of p + 1. It holds weights and no state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from backbone.engine.model.attention import Attention
from backbone.engine.model.batch import Step
from backbone.engine.model.layer import Layer
from backbone.engine.model.loader import DenseTensors
from backbone.engine.ops.interface import Linear, Ops
from backbone.engine.ops.model_config import ModelConfig, Presence
from kvasir.errors import UnsupportedModelError
from kvasir.experts import WeightMatrix


class ModelEnds(NamedTuple):
    """The tensors before and after a model's layers. An MTP head uses them where it has none of its own."""

    embedding: WeightMatrix  # [n_vocab, d_model]
    output_norm: Tensor  # [d_model]
    output: Linear  # to n_vocab logits


class Guessed(NamedTuple):
    """The layer's results for T rows."""

    hidden: Tensor  # [T, d_model], for the next token's row
    logits: Tensor  # [T, n_vocab], of the token after the given one


@dataclass(frozen=True, slots=True, eq=False)
class MtpLayer:
    """A full-attention layer behind a joint projection of a token's embedding and a hidden state."""

    ops: Ops
    norm_eps: float
    ends: ModelEnds
    token_norm: Tensor  # [d_model]
    hidden_norm: Tensor  # [d_model]
    joint: Linear  # 2 * d_model to d_model
    layer: Layer
    attention: Attention  # the layer's

    @classmethod
    def load(cls, tensors: DenseTensors, model: ModelConfig, ops: Ops, ends: ModelEnds) -> Self:
        """Load the layer's tensors; its own ends are preferred to the model's.

        Raises UnsupportedModelError when the model has no supported head, GGUFError for tensors that do not fit.
        """
        config = model.mtp_layer
        if config is None:
            raise UnsupportedModelError(f"{model.architecture}: no MTP head of this model is supported")
        own = tensors.below(f"blk.{config.layer}.")
        layer = Layer.load(own, config, model, ops)
        if not isinstance(layer.mixer, Attention):
            raise UnsupportedModelError(
                f"layer {config.layer} is an MTP head without attention, which is not supported"
            )
        return cls(
            ops=ops,
            norm_eps=model.norm_eps,
            ends=_own_ends(own.below("nextn."), ends, model.d_model),
            token_norm=own.vector("nextn.enorm.weight", model.d_model),
            hidden_norm=own.vector("nextn.hnorm.weight", model.d_model),
            joint=own.linear("nextn.eh_proj", model.d_model, 2 * model.d_model),
            layer=layer,
            attention=layer.mixer,
        )

    def remember(self, token_ids: Tensor, hidden: Tensor, step: Step) -> None:
        """Write only the keys and values of rows: tokens int64 [T] and the hidden states before them [T, d_model].

        Later rows need no more than these, so neither experts nor output head are computed.
        """
        x = self._joined(token_ids, hidden)
        self.attention.remember(self.ops.rms_norm(x, self.layer.mixer_norm, self.norm_eps), step)

    async def guess(self, token_ids: Tensor, hidden: Tensor, step: Step) -> Guessed:
        """Run the whole layer and the output head on rows as for `remember`, and write their keys and values."""
        x = await self.layer.forward(self._joined(token_ids, hidden), step)
        hidden = self.ops.rms_norm(x, self.ends.output_norm, self.norm_eps)
        return Guessed(hidden, self.ops.linear(hidden, self.ends.output)[0])

    def _joined(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """Return the layer's input rows [T, d_model]."""
        tokens = self.ops.rms_norm(self.ops.embed(self.ends.embedding, token_ids), self.token_norm, self.norm_eps)
        hidden = self.ops.rms_norm(hidden, self.hidden_norm, self.norm_eps)
        return self.ops.linear(torch.cat([tokens, hidden], -1), self.joint)[0]


def _own_ends(tensors: DenseTensors, ends: ModelEnds, d_model: int) -> ModelEnds:
    embedding, norm, output = ends
    n_vocab = embedding.n_out
    if tensors.has("embed_tokens.weight", Presence.OPTIONAL):
        embedding = tensors.matrix("embed_tokens.weight", n_vocab, d_model)
    if tensors.has("shared_head_norm.weight", Presence.OPTIONAL):
        norm = tensors.vector("shared_head_norm.weight", d_model)
    if tensors.has("shared_head_head.weight", Presence.OPTIONAL):
        output = tensors.linear("shared_head_head", n_vocab, d_model)
    return ModelEnds(embedding, norm, output)
