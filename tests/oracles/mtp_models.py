"""Tiny qwen35moe files whose MTP head is right by construction, always or for a chosen share of all tokens.

The layers add nothing to a token's embedding, so that the next token is a function of the last one alone. The head's
joint projection takes the embedding as it is, its layer adds nothing either, and so it computes the same function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvasir.gguf.index import GGUFIndex
from tests.oracles.quantise import quantise
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.oracles.tiny_layout import Role, TinyShape, TinyTensor

_NOT_TEXT = slice(250, 288)  # tokens that end a text, and their neighbours
_ADDED = ("attn_output.weight", "ssm_out.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight")
Change = Callable[[list[TinyTensor]], list[TinyTensor]]


def write_right_head(
    path: Path, shape: TinyShape, *, quantisation: str = "Q4_K", wrong_share: float = 0.0, disturbance: float = 0.0
) -> Path:
    """Write the model; `shape` has one MTP layer.

    The head takes `wrong_share` of all tokens, drawn at random, for other tokens. With a `disturbance` the decoding
    layers add so much of what random ones would, so that the head is right now and then. Greedily no token comes next
    that ends a text, nor its neighbours, which a test may want to forbid.
    """
    model = TinyModel("qwen35moe", quantisation, shape=shape, change_tensors=_changed(shape, disturbance))
    write_tiny(path, model)
    prefix = f"blk.{shape.n_layer}.nextn."
    d_model, n_vocab = shape.d_model, shape.n_vocab
    with GGUFIndex.open(path) as index:
        rows, outputs = (
            index.bytes_of(f"{name}.weight").reshape(n_vocab, -1).copy() for name in ("token_embd", "output")
        )
        joint_type = index.tensor(f"{prefix}eh_proj.weight").quant_type
    outputs[_NOT_TEXT] = 0
    _overwrite(path, "output.weight", outputs)
    generator = np.random.default_rng(1)
    wrong = generator.permutation(n_vocab)[: round(wrong_share * n_vocab)]
    rows[wrong] = rows[np.roll(wrong, 1)]
    _overwrite(path, f"{prefix}embed_tokens.weight", rows)
    joint = np.concatenate([np.eye(d_model), np.zeros((d_model, d_model))], axis=1)
    _overwrite(path, f"{prefix}eh_proj.weight", quantise(joint.astype(np.float32), joint_type))
    return path


def _changed(shape: TinyShape, disturbance: float) -> Change:
    head = f"blk.{shape.n_layer}."

    def change(tensors: list[TinyTensor]) -> list[TinyTensor]:
        changed = []
        for tensor in tensors:
            if tensor.name == f"{head}nextn.shared_head_norm.weight":
                continue  # the model's own norm is the right one
            if tensor.name.endswith(_ADDED):
                share = 0.0 if tensor.name.startswith(head) else disturbance
                changed.append(replace(tensor, deviation=tensor.deviation * share))
            elif tensor.name.endswith("nextn.enorm.weight"):
                changed.append(replace(tensor, deviation=0.0))
            elif tensor.name.endswith("nextn.eh_proj.weight"):
                changed.append(replace(tensor, role=Role.OUTPUT))  # finely quantised: the embedding as it is
            else:
                changed.append(tensor)
        return [
            *changed,
            TinyTensor(f"{head}nextn.embed_tokens.weight", (shape.n_vocab, shape.d_model), Role.OUTPUT, 1.0),
        ]

    return change


def _overwrite(path: Path, name: str, stored: npt.NDArray[np.uint8]) -> None:
    """Put other bytes in a tensor's place."""
    with GGUFIndex.open(path) as index:
        info = index.tensor(name)
    if info.n_bytes != stored.size:
        raise ValueError(f"tensor {name!r} has {info.n_bytes} bytes, {stored.size} were made")
    with path.open("r+b") as file:
        file.seek(info.offset)
        file.write(stored.tobytes())
