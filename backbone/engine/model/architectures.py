"""The architectures that the engine runs, as data: their differences, and how a file's metadata fills in the rest.

Callers use `read_config`. Another architecture is another entry in ARCHITECTURES; another kind of attention is a config
class, a function that reads it, and a mixer in `model.layer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from backbone.engine.model.architecture_metadata import ArchMetadata
from backbone.engine.ops.model_config import (
    AttentionConfig,
    DenseFFNConfig,
    FFNConfig,
    GatedDeltaConfig,
    LayerConfig,
    MixerConfig,
    ModelConfig,
    MoEConfig,
    Presence,
    QKNorm,
    RopeConfig,
    RouterConfig,
    ScoreFunction,
    SharedExpertConfig,
)
from kvasir.errors import GGUFError, UnsupportedModelError
from kvasir.slicing.model_card import LAYERS_MAX


@dataclass(frozen=True, slots=True)
class RouterFacts:
    """Facts of an architecture's reference router. None or several values: the file's metadata decides."""

    score_functions: tuple[ScoreFunction, ...] = (ScoreFunction.SOFTMAX,)  # the first is the default
    is_normalised: bool | None = True
    has_selection_bias: bool = False
    may_have_groups: bool = False


class SharedExpert(Enum):
    """The kind of expert that every row uses, in layers with routed experts."""

    NONE = "none"
    PLAIN = "plain"
    GATED = "gated"


@dataclass(frozen=True, slots=True)
class Architecture:
    """The facts in which architectures differ."""

    has_adjacent_pairs: bool = False
    qk_norm: QKNorm = QKNorm.NONE
    qk_norm_presence: Presence = Presence.ABSENT
    qkv_bias: Presence = Presence.ABSENT
    has_output_gate: bool = False
    ffn_norm: str = "ffn_norm"
    router: RouterFacts = RouterFacts()
    shared_expert: SharedExpert = SharedExpert.NONE
    has_leading_dense: bool = False  # the first `leading_dense_block_count` layers have no experts
    has_mtp_head: bool = False  # a multi-token-prediction layer, if single, is a full-attention layer
    read_mixers: Callable[[ArchMetadata, Architecture, int], tuple[MixerConfig, ...]] | None = None


def _read_attention(metadata: ArchMetadata, arch: Architecture) -> AttentionConfig:
    d_model = metadata.positive("embedding_length")
    n_head = metadata.positive("attention.head_count")
    n_kv_head = metadata.positive("attention.head_count_kv", n_head)
    if n_head % n_kv_head:
        raise GGUFError(f"{n_head} attention heads cannot share {n_kv_head} key-value heads evenly")
    d_head = metadata.positive("attention.key_length", d_model // n_head)
    n_rope_dims = metadata.positive("rope.dimension_count", d_head)
    if n_rope_dims % 2 or n_rope_dims > d_head:
        raise GGUFError(f"rope.dimension_count is {n_rope_dims}; an even number up to {d_head} is needed")
    return AttentionConfig(
        n_head=n_head,
        n_kv_head=n_kv_head,
        d_head=d_head,
        d_head_v=metadata.positive("attention.value_length", d_head),
        rope=RopeConfig(n_rope_dims, metadata.number("rope.freq_base", 10_000.0), arch.has_adjacent_pairs),
        qk_norm=arch.qk_norm,
        qk_norm_presence=arch.qk_norm_presence,
        qkv_bias=arch.qkv_bias,
        has_output_gate=arch.has_output_gate,
    )


def _read_gated_delta(metadata: ArchMetadata) -> GatedDeltaConfig:
    n_k_head = metadata.positive("ssm.group_count")
    n_v_head = metadata.positive("ssm.time_step_rank")
    d_value = metadata.positive("ssm.inner_size")
    if n_v_head % n_k_head or d_value % n_v_head:
        raise GGUFError(
            f"ssm: {n_v_head} value heads do not divide {d_value} values or share {n_k_head} key heads evenly"
        )
    return GatedDeltaConfig(
        n_k_head=n_k_head,
        n_v_head=n_v_head,
        d_k=metadata.positive("ssm.state_size"),
        d_v=d_value // n_v_head,
        conv_width=metadata.positive("ssm.conv_kernel"),
    )


def _attention_everywhere(metadata: ArchMetadata, arch: Architecture, n_layer: int) -> tuple[MixerConfig, ...]:
    return (_read_attention(metadata, arch),) * n_layer


def _attention_at_intervals(metadata: ArchMetadata, arch: Architecture, n_layer: int) -> tuple[MixerConfig, ...]:
    attention, delta = _read_attention(metadata, arch), _read_gated_delta(metadata)
    interval = metadata.positive("full_attention_interval", 4)
    return tuple(delta if (layer + 1) % interval else attention for layer in range(n_layer))


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "qwen3moe": Architecture(qk_norm=QKNorm.PER_HEAD, qk_norm_presence=Presence.REQUIRED),
        "qwen35moe": Architecture(
            qk_norm=QKNorm.PER_HEAD,
            qk_norm_presence=Presence.REQUIRED,
            has_output_gate=True,
            ffn_norm="post_attention_norm",
            shared_expert=SharedExpert.GATED,
            has_mtp_head=True,
            read_mixers=_attention_at_intervals,
        ),
        "qwen2moe": Architecture(
            qkv_bias=Presence.REQUIRED,
            router=RouterFacts(is_normalised=False),
            shared_expert=SharedExpert.GATED,
        ),
        "olmoe": Architecture(
            qk_norm=QKNorm.WHOLE,
            qk_norm_presence=Presence.REQUIRED,
            router=RouterFacts(is_normalised=False),
        ),
        "glm4moe": Architecture(
            qk_norm=QKNorm.PER_HEAD,
            qk_norm_presence=Presence.OPTIONAL,
            qkv_bias=Presence.OPTIONAL,
            ffn_norm="post_attention_norm",
            router=RouterFacts(
                score_functions=(ScoreFunction.SIGMOID, ScoreFunction.SOFTMAX),
                is_normalised=None,
                has_selection_bias=True,
                may_have_groups=True,
            ),
            shared_expert=SharedExpert.PLAIN,
            has_leading_dense=True,
        ),
        "llama": Architecture(has_adjacent_pairs=True, qkv_bias=Presence.OPTIONAL),  # Mixtral
    }
)


def read_config(metadata: Mapping[str, object]) -> ModelConfig:
    """Return the config of a GGUF file's model.

    Raises UnsupportedModelError for an architecture, a key or a value that is not supported, and GGUFError for
    metadata that is missing or contradictory; both name the key and the value.
    """
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise GGUFError(f"the metadata key general.architecture is {name!r}, a string is needed")
    arch = ARCHITECTURES.get(name)
    if arch is None:
        raise UnsupportedModelError(f"architecture {name!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    reader = ArchMetadata(metadata, name)
    n_mtp_layer = reader.integer("nextn_predict_layers", 0)
    n_layer = reader.positive("block_count") - n_mtp_layer
    if n_layer > LAYERS_MAX:
        raise GGUFError(f"{name}.block_count is {n_layer + n_mtp_layer}; at most {LAYERS_MAX} layers are allowed")
    if n_layer < 1:
        raise GGUFError(f"{name}.nextn_predict_layers is {n_mtp_layer} and leaves no decoding layer")
    mixers = (arch.read_mixers or _attention_everywhere)(reader, arch, n_layer)
    ffns = _read_ffns(reader, arch, n_layer)
    config = ModelConfig(
        architecture=name,
        d_model=reader.positive("embedding_length"),
        n_ctx_train=reader.positive("context_length"),
        norm_eps=reader.number("attention.layer_norm_rms_epsilon"),
        layers=tuple(
            LayerConfig(layer, mixer, ffn, arch.ffn_norm)
            for layer, (mixer, ffn) in enumerate(zip(mixers, ffns, strict=True))
        ),
        n_mtp_layer=n_mtp_layer,
        mtp_layer=LayerConfig(n_layer, _read_attention(reader, arch), ffns[-1], arch.ffn_norm)
        if arch.has_mtp_head and n_mtp_layer == 1
        else None,
    )
    reader.check_all_read()
    return config


def _read_ffns(metadata: ArchMetadata, arch: Architecture, n_layer: int) -> tuple[FFNConfig, ...]:
    n_dense = metadata.integer("leading_dense_block_count", 0)
    if n_dense and not arch.has_leading_dense:
        raise metadata.unsupported("leading_dense_block_count", n_dense, "0 in this architecture")
    d_ff = metadata.positive("feed_forward_length") if n_dense else metadata.integer("feed_forward_length", 0)
    moe = MoEConfig(_read_router(metadata, arch.router), _read_shared_expert(metadata, arch))
    return tuple(DenseFFNConfig(d_ff) if layer < n_dense else moe for layer in range(n_layer))


def _read_shared_expert(metadata: ArchMetadata, arch: Architecture) -> SharedExpertConfig | None:
    if arch.shared_expert is SharedExpert.NONE:
        n_shared = metadata.integer("expert_shared_count", 0)
        if n_shared:
            raise metadata.unsupported("expert_shared_count", n_shared, "0 in this architecture")
        return None
    d_ff = metadata.integer("expert_shared_feed_forward_length", 0)
    if not d_ff:
        d_ff = metadata.positive("expert_feed_forward_length") * metadata.positive("expert_shared_count", 1)
    return SharedExpertConfig(d_ff, is_gated=arch.shared_expert is SharedExpert.GATED)


def _read_router(metadata: ArchMetadata, facts: RouterFacts) -> RouterConfig:
    n_expert = metadata.integer("expert_count", 0)
    if not n_expert:
        raise metadata.unsupported("expert_count", n_expert, "1 or more; a model without experts has nothing to shard")
    n_used = metadata.positive("expert_used_count")
    n_group, n_group_used = _read_groups(metadata, facts, n_expert)
    if n_used > n_expert // n_group * n_group_used:
        raise GGUFError(f"{n_used} experts a row are more than the {n_expert} experts that can be chosen from")
    return RouterConfig(
        n_expert=n_expert,
        n_used=n_used,
        score_function=_read_score_function(metadata, facts),
        is_normalised=_read_is_normalised(metadata, facts),
        weights_scale=metadata.number("expert_weights_scale", 1.0) or 1.0,  # files write 0 for "not scaled"
        has_selection_bias=facts.has_selection_bias,
        n_group=n_group,
        n_group_used=n_group_used,
    )


def _read_score_function(metadata: ArchMetadata, facts: RouterFacts) -> ScoreFunction:
    default = facts.score_functions[0]
    value = metadata.integer("expert_gating_func", default.value) or default.value  # files write 0 for "not said"
    for function in facts.score_functions:
        if function.value == value:
            return function
    supported = ", ".join(f"{function.value} ({function.name.lower()})" for function in facts.score_functions)
    raise metadata.unsupported("expert_gating_func", value, supported)


def _read_is_normalised(metadata: ArchMetadata, facts: RouterFacts) -> bool:
    if facts.is_normalised is None:
        return metadata.boolean("expert_weights_norm", False)
    value = metadata.boolean("expert_weights_norm", facts.is_normalised)
    if value is not facts.is_normalised:
        raise metadata.unsupported("expert_weights_norm", value, f"{facts.is_normalised} in this architecture")
    return value


def _read_groups(metadata: ArchMetadata, facts: RouterFacts, n_expert: int) -> tuple[int, int]:
    n_group = metadata.integer("expert_group_count", 1) or 1
    n_group_used = metadata.integer("expert_group_used_count", n_group) or n_group
    if n_group == 1:
        return 1, 1
    if not facts.may_have_groups:
        raise metadata.unsupported("expert_group_count", n_group, "1 in this architecture")
    if n_expert % n_group or n_expert // n_group < 2 or not 1 <= n_group_used <= n_group:
        raise GGUFError(f"{n_expert} experts in {n_group} groups of which {n_group_used} are used do not fit together")
    return n_group, n_group_used
