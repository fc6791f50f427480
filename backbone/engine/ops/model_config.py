"""The parts of a model, layer by layer, as frozen data read from a GGUF file's metadata.

`model.architectures` makes it, the loader and the layers read it. A layer is a mixer (where rows of a sequence see each
other) and an FFN, each with its own config class; another kind of mixer is another class here and an entry in
`model.layer`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from kvasir.errors import UnsupportedModelError


class QKNorm(Enum):
    """The values that a norm of queries and keys runs over, before the rotation."""

    NONE = "none"
    PER_HEAD = "per head"
    WHOLE = "whole"  # all heads of the row together


class Presence(Enum):
    """If a tensor is part of an architecture."""

    ABSENT = "absent"
    OPTIONAL = "optional"  # used where the file has it
    REQUIRED = "required"


class ScoreFunction(Enum):
    """The function from router logits to scores; the values are GGUF's `expert_gating_func`."""

    SOFTMAX = 1
    SIGMOID = 2


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions: the first `n_dims` values of each head turn."""

    n_dims: int
    base: float
    has_adjacent_pairs: bool  # pairs are (2i, 2i + 1), else (i, i + n_dims / 2)


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Softmax attention with grouped key-value heads."""

    n_head: int
    n_kv_head: int
    d_head: int
    d_head_v: int
    rope: RopeConfig
    qk_norm: QKNorm
    qk_norm_presence: Presence
    qkv_bias: Presence
    has_output_gate: bool  # attn_q holds, per head, the query and a gate for the head's output

    @property
    def scale(self) -> float:
        """The factor of q·k."""
        return float(self.d_head**-0.5)


@dataclass(frozen=True, slots=True)
class GatedDeltaConfig:
    """A recurrent layer by the gated delta rule, behind a short causal convolution."""

    n_k_head: int
    n_v_head: int
    d_k: int
    d_v: int
    conv_width: int

    @property
    def n_conv_channel(self) -> int:
        """Queries, keys and values, side by side."""
        return 2 * self.n_k_head * self.d_k + self.d_value

    @property
    def d_value(self) -> int:
        """All value heads of a row."""
        return self.n_v_head * self.d_v


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """The choice and the weights of a row's experts."""

    n_expert: int
    n_used: int
    score_function: ScoreFunction
    is_normalised: bool  # the weights of the chosen experts are divided by their sum
    weights_scale: float
    has_selection_bias: bool  # a bias that affects the choice only
    n_group: int = 1  # experts are chosen from the best `n_group_used` groups only
    n_group_used: int = 1


@dataclass(frozen=True, slots=True)
class DenseFFNConfig:
    """One gated FFN for every row."""

    d_ff: int


@dataclass(frozen=True, slots=True)
class SharedExpertConfig:
    """The expert that every row uses, computed by the backbone."""

    d_ff: int
    is_gated: bool  # its output is multiplied by the sigmoid of a learned dot product


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """Routed experts and perhaps a shared one."""

    router: RouterConfig
    shared_expert: SharedExpertConfig | None


MixerConfig = AttentionConfig | GatedDeltaConfig
FFNConfig = DenseFFNConfig | MoEConfig


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """One layer: x += mixer(norm(x)), then x += ffn(norm(x))."""

    layer: int
    mixer: MixerConfig
    ffn: FFNConfig
    ffn_norm: str  # name of the second norm's tensor, without `blk.N.` and `.weight`


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A whole model. Its vocabulary's size is that of the embedding tensor."""

    architecture: str
    d_model: int
    n_ctx_train: int
    norm_eps: float
    layers: tuple[LayerConfig, ...]  # decoding layers, without MTP
    n_mtp_layer: int
    mtp_layer: LayerConfig | None = None  # of the MTP head, where it is supported for this architecture

    @property
    def n_layer(self) -> int:
        """Decoding layers."""
        return len(self.layers)

    def with_mtp_layer(self) -> ModelConfig:
        """Return a config with the MTP head's layer among the layers, for caches and the loader when it is in use.

        Raises UnsupportedModelError if there is none.
        """
        if self.mtp_layer is None:
            raise UnsupportedModelError(f"{self.architecture}: no MTP head of this model is supported")
        return replace(self, layers=(*self.layers, self.mtp_layer), n_mtp_layer=0)

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Numbers of the layers with routed experts."""
        return tuple(layer.layer for layer in self.layers if isinstance(layer.ffn, MoEConfig))

    @property
    def ropes(self) -> frozenset[RopeConfig]:
        """The different rotations that the layers use."""
        return frozenset(layer.mixer.rope for layer in self.layers if isinstance(layer.mixer, AttentionConfig))
