"""The model card: the facts about a mixture-of-experts model, read from GGUF metadata and checked against the tensors.

The backbone, the slicer, `kvasir inspect` and the handshake use it. It holds plain values and no open file.

Multi-token-prediction blocks (`{arch}.nextn_predict_layers`, the last blocks of a file) are not used in plain decoding:
they are counted in `n_mtp_layer` only.
"""

from __future__ import annotations

from dataclasses import dataclass

from gguf import GGMLQuantizationType

from kvasir.errors import GGUFError, SliceError, UnsupportedModelError
from kvasir.gguf.index import GGUFIndex
from kvasir.gguf.metadata import Metadata
from kvasir.slicing.expert_tensors import ExpertTensors, find_expert_tensors, layer_of
from kvasir.slicing.model_fingerprint import fingerprint_of

# The backbone's engine runs these; other mixture-of-experts files can still be inspected and sliced.
ENGINE_ARCHITECTURES = ("qwen3moe", "qwen35moe", "qwen2moe", "olmoe", "glm4moe", "llama")
LAYERS_MAX = 4096


@dataclass(frozen=True, slots=True)
class MoeLayer:
    """One layer's routed experts: the types of their matrices and the bytes of one expert."""

    layer: int
    gate_type: GGMLQuantizationType
    up_type: GGMLQuantizationType
    down_type: GGMLQuantizationType
    expert_bytes: int
    is_fused: bool
    has_bias: bool


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Facts of one model. `n_layer` counts decoding layers, dense ones too; `moe_layers` names those with experts."""

    architecture: str
    name: str
    n_layer: int
    n_mtp_layer: int
    n_expert: int  # routed experts of a layer
    n_used: int  # experts that the router selects for a row
    d_model: int
    d_ff: int  # inner width of one routed expert
    n_vocab: int
    n_ctx: int
    fingerprint: str  # 64 hex digits, see kvasir.slicing.model_fingerprint
    layers: tuple[MoeLayer, ...]  # those with experts, ascending
    n_bytes: int  # all tensors
    mtp_bytes: int  # tensors of multi-token-prediction blocks

    @classmethod
    def from_index(cls, index: GGUFIndex) -> ModelCard:
        """Describe an open model. This hashes up to 256 MiB, or samples (see `kvasir.slicing.model_fingerprint`).

        Raises UnsupportedModelError for a model without experts or with unsupported ones, GGUFError if metadata and
        tensors contradict each other.
        """
        metadata = index.metadata
        architecture = metadata.text("general.architecture")
        n_block = _positive(metadata, f"{architecture}.block_count", LAYERS_MAX)
        n_mtp = metadata.integer(f"{architecture}.nextn_predict_layers", 0)
        if not 0 <= n_mtp < n_block:
            raise GGUFError(f"{architecture}.nextn_predict_layers is {n_mtp}; the model has {n_block} blocks in all")
        tensors = find_expert_tensors(index, n_block - n_mtp)
        if not tensors:
            raise UnsupportedModelError(f"this {architecture} model has no routed experts; Kvasir shards experts")
        shape = _common_shape(tensors)
        _check_against_metadata(metadata, architecture, shape)
        return cls(
            architecture=architecture,
            name=metadata.text("general.name", architecture),
            n_layer=n_block - n_mtp,
            n_mtp_layer=n_mtp,
            n_expert=shape.n_expert,
            n_used=_positive(metadata, f"{architecture}.expert_used_count", shape.n_expert),
            d_model=shape.d_model,
            d_ff=shape.d_ff,
            n_vocab=_n_vocab(index),
            n_ctx=metadata.integer(f"{architecture}.context_length", 0),
            fingerprint=fingerprint_of(index),
            layers=tuple(_describe(layer_tensors) for layer_tensors in tensors.values()),
            n_bytes=sum(info.n_bytes for info in index.tensors.values()),
            mtp_bytes=_bytes_after(index, n_block - n_mtp),
        )

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Return the numbers of the layers that have experts, ascending."""
        return tuple(layer.layer for layer in self.layers)

    @property
    def is_engine_architecture(self) -> bool:
        """Return whether the backbone's engine runs this architecture."""
        return self.architecture in ENGINE_ARCHITECTURES

    @property
    def routed_bytes(self) -> int:
        """Return the bytes of all routed experts."""
        return self.n_expert * sum(layer.expert_bytes for layer in self.layers)

    @property
    def dense_bytes(self) -> int:
        """Return the bytes of all other tensors except multi-token prediction; they stay on the backbone."""
        return self.n_bytes - self.routed_bytes - self.mtp_bytes

    def moe_layer(self, layer: int) -> MoeLayer:
        """Return the facts of one layer. Raises SliceError, which names the layers with experts, if it has none."""
        for candidate in self.layers:
            if candidate.layer == layer:
                return candidate
        numbers = self.moe_layers
        raise SliceError(f"layer {layer} has no experts; layers with experts are {numbers[0]} to {numbers[-1]}")

    def expert_bytes(self, layer: int) -> int:
        """Return the stored bytes of one expert of a layer."""
        return self.moe_layer(layer).expert_bytes

    def quant_types(self, layer: int) -> tuple[GGMLQuantizationType, GGMLQuantizationType, GGMLQuantizationType]:
        """Return the types of a layer's gate, up and down matrices."""
        facts = self.moe_layer(layer)
        return facts.gate_type, facts.up_type, facts.down_type


def _describe(tensors: ExpertTensors) -> MoeLayer:
    gate_type, up_type, down_type = tensors.quant_types
    return MoeLayer(
        tensors.layer, gate_type, up_type, down_type, tensors.expert_bytes, tensors.is_fused, bool(tensors.biases)
    )


def _common_shape(tensors: dict[int, ExpertTensors]) -> ExpertTensors:
    first = next(iter(tensors.values()))
    for other in tensors.values():
        if (other.n_expert, other.d_model, other.d_ff) != (first.n_expert, first.d_model, first.d_ff):
            raise UnsupportedModelError(
                f"layers {first.layer} and {other.layer} have experts of different counts or shapes: "
                f"{first.n_expert}, {first.d_model} x {first.d_ff} and "
                f"{other.n_expert}, {other.d_model} x {other.d_ff}"
            )
    return first


def _check_against_metadata(metadata: Metadata, architecture: str, shape: ExpertTensors) -> None:
    wanted = {
        "expert_count": shape.n_expert,
        "embedding_length": shape.d_model,
        "expert_feed_forward_length": shape.d_ff,
    }
    for key, found in wanted.items():
        claimed = metadata.integer(f"{architecture}.{key}", found)
        if claimed != found:
            raise GGUFError(f"{architecture}.{key} is {claimed}, but the expert tensors have {found}")


def _positive(metadata: Metadata, key: str, largest: int) -> int:
    value = metadata.integer(key)
    if not 1 <= value <= largest:
        raise GGUFError(f"{key} is {value}; it must be from 1 to {largest}")
    return value


def _n_vocab(index: GGUFIndex) -> int:
    embedding = index.tensors.get("token_embd.weight")
    if embedding is not None:
        return embedding.shape[0]
    tokens = "tokenizer.ggml.tokens"
    return index.metadata.n_items(tokens) if tokens in index.metadata else 0


def _bytes_after(index: GGUFIndex, n_layer: int) -> int:
    """Return the bytes of the blocks from `n_layer` on."""
    layers = ((layer_of(name), info.n_bytes) for name, info in index.tensors.items())
    return sum(n_bytes for layer, n_bytes in layers if layer is not None and layer >= n_layer)
