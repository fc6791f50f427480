"""Tiny random GGUF models of every supported architecture, and the dequantised twin of each quantised one.

Tests and benchmarks call `write_tiny`. The same seed gives the same weights whatever the quantisation; the twin is
an F32 file that holds exactly what the quantised blocks stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter

from tests.oracles.quantise import dequantise, quantise
from tests.oracles.tiny_layout import Role, TinyShape, TinyTensor, tiny_metadata, tiny_tensors

_T = GGMLQuantizationType
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "a n", "i n")
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True, slots=True)
class Quantisation:
    """The ggml type of each role; PLAIN tensors and vectors are always F32."""

    dense: GGMLQuantizationType
    output: GGMLQuantizationType
    expert: GGMLQuantizationType
    down: GGMLQuantizationType

    def type_of(self, tensor: TinyTensor) -> GGMLQuantizationType:
        """The type in which a tensor is stored."""
        if tensor.role is Role.PLAIN or len(tensor.shape) == 1:
            return _T.F32
        by_role = {
            Role.DENSE: self.dense,
            Role.OUTPUT: self.output,
            Role.EXPERT: self.expert,
            Role.DOWN: self.down,
        }
        return by_role[tensor.role]


QUANTISATIONS = {
    "F32": Quantisation(_T.F32, _T.F32, _T.F32, _T.F32),
    "F16": Quantisation(_T.F16, _T.F16, _T.F16, _T.F16),
    "BF16": Quantisation(_T.BF16, _T.BF16, _T.BF16, _T.BF16),
    "Q8_0": Quantisation(_T.Q8_0, _T.Q8_0, _T.Q8_0, _T.Q8_0),
    "Q4_K": Quantisation(dense=_T.Q4_K, output=_T.Q6_K, expert=_T.Q4_K, down=_T.Q6_K),
    "Q5_K": Quantisation(dense=_T.Q5_K, output=_T.Q6_K, expert=_T.Q5_K, down=_T.Q8_0),
}


@dataclass(frozen=True, slots=True)
class TinyModel:
    """What to write. `is_dequantised` makes the F32 twin of the quantised file."""

    architecture: str
    quantisation: str = "F32"
    is_dequantised: bool = False
    is_gate_up_fused: bool = False
    is_tied: bool = False  # no output.weight: the embedding is the head
    seed: int = 0
    shape: TinyShape = field(default_factory=TinyShape)
    metadata: dict[str, Any] = field(default_factory=dict)  # overrides by key without prefix; None removes a key
    split_tensors: int = 0  # more than 0: a split file with that many tensors a part
    change_tensors: Callable[[list[TinyTensor]], list[TinyTensor]] = list  # for files that are wrong on purpose


def write_tiny(path: Path, model: TinyModel) -> Path:
    """Write `model` at `path`; returns the file to open, which is the first part of a split file."""
    writer = _TinyWriter(path, model)
    for tensor, stored, blocks in _blocks(model):
        writer.add(tensor, stored, blocks, is_dequantised=model.is_dequantised)
    return writer.finish()


def write_tiny_pair(path: Path, twin_path: Path, model: TinyModel) -> tuple[Path, Path]:
    """Write a quantised model and its dequantised twin at once; returns the files to open."""
    writer, twin = _TinyWriter(path, model), _TinyWriter(twin_path, model)
    for tensor, stored, blocks in _blocks(model):
        writer.add(tensor, stored, blocks, is_dequantised=False)
        twin.add(tensor, stored, blocks, is_dequantised=True)
    return writer.finish(), twin.finish()


Blocks = tuple[TinyTensor, GGMLQuantizationType, npt.NDArray[np.uint8]]


def _blocks(model: TinyModel) -> Iterator[Blocks]:
    """Every tensor's stored form."""
    generator = np.random.default_rng(model.seed)
    tensors = tiny_tensors(model.architecture, model.shape, is_fused=model.is_gate_up_fused, is_tied=model.is_tied)
    for tensor in model.change_tensors(list(tensors)):
        values = generator.standard_normal(tensor.shape, np.float32)
        values = values * np.float32(tensor.deviation) + np.float32(tensor.mean)
        stored = QUANTISATIONS[model.quantisation].type_of(tensor)
        yield tensor, stored, quantise(values, stored)


class _TinyWriter:
    """One file being written."""

    def __init__(self, path: Path, model: TinyModel) -> None:
        self._path = path
        self._split_tensors = model.split_tensors
        self._n_tensors = 0
        self._writer = GGUFWriter(path, model.architecture, split_max_tensors=model.split_tensors)
        self._writer.add_name(f"tiny-{model.architecture}")
        _add_metadata(self._writer, model)
        _add_tokenizer(self._writer, model)

    def add(
        self,
        tensor: TinyTensor,
        stored: GGMLQuantizationType,
        blocks: npt.NDArray[np.uint8],
        *,
        is_dequantised: bool,
    ) -> None:
        self._n_tensors += 1
        if is_dequantised or stored == _T.F32:
            self._writer.add_tensor(tensor.name, dequantise(blocks, stored).reshape(tensor.shape))
        else:
            self._writer.add_tensor(tensor.name, blocks, raw_dtype=stored)

    def finish(self) -> Path:
        self._writer.write_header_to_file(self._path)
        self._writer.write_kv_data_to_file()
        self._writer.write_tensors_to_file()
        self._writer.close()
        if not self._split_tensors:
            return self._path
        n_parts = -(-self._n_tensors // self._split_tensors)
        return self._path.with_name(f"{self._path.stem}-00001-of-{n_parts:05d}.gguf")


def _add_metadata(writer: GGUFWriter, model: TinyModel) -> None:
    metadata = tiny_metadata(model.architecture, model.shape) | model.metadata
    for name, value in metadata.items():
        key = f"{model.architecture}.{name}"
        match value:
            case None:
                pass
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)


def _byte_letters() -> list[str]:
    """The letter that byte-level BPE writes for each byte value."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    rest = (byte for byte in range(256) if byte not in letters)
    letters |= {byte: chr(256 + n) for n, byte in enumerate(rest)}
    return [letters[byte] for byte in range(256)]


def _add_tokenizer(writer: GGUFWriter, model: TinyModel) -> None:
    tokens = [*_byte_letters(), *(merge.replace(" ", "") for merge in _MERGES)]
    types = [1] * len(tokens)
    tokens += _SPECIAL
    types += [3] * len(_SPECIAL)
    n_padding = model.shape.n_vocab - len(tokens)
    tokens += [f"[PAD{n}]" for n in range(n_padding)]
    types += [5] * n_padding
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35" if model.architecture == "qwen35moe" else "qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(list(_MERGES))
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_pad_token_id(tokens.index("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
