"""The metadata of one architecture (`qwen3moe.block_count`, ...), read strictly.

`model.architectures` reads a model's facts through it. A key that is missing or of the wrong type raises an error that
names it. So does, at the end, a key that was not read: it may change the results, so it is never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvasir.errors import GGUFError, UnsupportedModelError

# Keys that do not affect the computation here.
_WITHOUT_INFLUENCE = frozenset(
    {
        "vocab_size",  # the embedding's shape says it
        "expert_feed_forward_length",  # the expert tensors' shapes say it
        "expert_shared_feed_forward_length",  # where there is no shared expert; its tensors would be left over
        "expert_shared_count",  # the shared expert's tensors are as wide as all of them together
        "rope.dimension_sections",  # the sections have equal positions in plain text
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
        "tensor_data_layout",
    }
)
# Keys of computations that are not supported, with the values at which they change nothing.
_ONLY_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "rope.scaling.type": ("none", "linear"),  # linear is harmless at factor 1, see below
    "rope.scaling.factor": (0.0, 1.0),
    "rope.scale_linear": (0.0, 1.0),
    "attention.sliding_window": (0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
    "expert_group_scale": (0.0, 1.0),
    "interleave_moe_layer_step": (0, 1),
    "moe_every_n_layers": (0, 1),
}


class ArchMetadata:
    """A reader of the keys below an architecture's prefix, which remembers what was read."""

    def __init__(self, metadata: Mapping[str, object], architecture: str) -> None:
        self._metadata = metadata
        self._prefix = f"{architecture}."
        self._read: set[str] = set()

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a count of 0 or more. A list of equal counts, one a layer, is one count; others are not supported."""
        value = self._value(name, default)
        if isinstance(value, list) and value:
            if any(item != value[0] for item in value):
                raise UnsupportedModelError(f"{self._prefix}{name} differs from layer to layer, which is not supported")
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise GGUFError(f"{self._prefix}{name} is {value!r}, a whole number of 0 or more is needed")
        return value

    def positive(self, name: str, default: int | None = None) -> int:
        """Return a count of 1 or more."""
        value = self.integer(name, default)
        if value < 1:
            raise GGUFError(f"{self._prefix}{name} is {value}, 1 or more is needed")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not -1e30 < value < 1e30:
            raise GGUFError(f"{self._prefix}{name} is {value!r}, a finite number is needed")
        return float(value)

    def boolean(self, name: str, default: bool | None = None) -> bool:
        """Return a bool."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise GGUFError(f"{self._prefix}{name} is {value!r}, a bool is needed")
        return value

    def unsupported(self, name: str, value: object, supported: str) -> UnsupportedModelError:
        """Return the error for a value that is valid but not supported here."""
        return UnsupportedModelError(f"{self._prefix}{name} is {value!r}; supported: {supported}")

    def check_all_read(self) -> None:
        """Raise UnsupportedModelError naming the first key, in the file's order, that is not known."""
        for key in self._metadata:
            name = key.removeprefix(self._prefix)
            if name == key or name in self._read or name in _WITHOUT_INFLUENCE:
                continue
            neutral = _ONLY_NEUTRAL.get(name)
            if neutral is None:
                raise UnsupportedModelError(
                    f"the metadata key {key} is not known; it may change what the model computes"
                )
            value = self._metadata[key]
            if value not in neutral:
                raise self.unsupported(name, value, " or ".join(map(repr, neutral)))

    def _value(self, name: str, default: object) -> object:
        self._read.add(name)
        value = self._metadata.get(self._prefix + name, default)
        if value is None:
            raise GGUFError(f"the metadata key {self._prefix}{name} is missing")
        return value
