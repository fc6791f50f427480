"""The trained weights as GGUF: `python -m tools.demo_model.convert demo.npz --tokenizer FOLDER/tokenizer.json q4_k_m`.

Quant blocks are made by ggml's own quantiser, the `libggml-python` package or any llama.cpp build's libggml-base.so.
Norms and router stay F32.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
from gguf.quants import quant_shape_to_byte_shape
from numpy.typing import NDArray

from tools.demo_model.model import DemoConfig, load_checkpoint
from tools.demo_model.prepare import END, END_ID

NAME = "kvasir-demo-moe"


@dataclass(frozen=True, slots=True)
class QuantMix:
    """The ggml type of each kind of matrix."""

    gate_up: GGMLQuantizationType
    down: GGMLQuantizationType
    dense: GGMLQuantizationType  # attention and embedding
    file_type: LlamaFileType


MIXES = {
    "f32": QuantMix(
        GGMLQuantizationType.F32,
        GGMLQuantizationType.F32,
        GGMLQuantizationType.F32,
        LlamaFileType.ALL_F32,
    ),
    "q8_0": QuantMix(
        GGMLQuantizationType.Q8_0,
        GGMLQuantizationType.Q8_0,
        GGMLQuantizationType.Q8_0,
        LlamaFileType.MOSTLY_Q8_0,
    ),
    "q4_k_m": QuantMix(
        GGMLQuantizationType.Q4_K,
        GGMLQuantizationType.Q6_K,
        GGMLQuantizationType.Q8_0,
        LlamaFileType.MOSTLY_Q4_K_M,
    ),
}


class Quantiser:
    """`ggml_quantize_chunk` of a ggml library."""

    def __init__(self, library: Path | None = None) -> None:
        """Raises FileNotFoundError when no library is given and `libggml-python` is not installed."""
        self._function = ctypes.CDLL(str(library or _installed_library())).ggml_quantize_chunk
        self._function.restype = ctypes.c_size_t
        self._function.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]

    def __call__(self, values: NDArray[np.float32], quant_type: GGMLQuantizationType) -> NDArray[np.uint8]:
        """Quant blocks uint8 [..., row_bytes] of values f32 [..., n]. Raises ValueError when n is no multiple."""
        values = np.ascontiguousarray(values, np.float32)
        blocks = np.zeros(quant_shape_to_byte_shape(values.shape, quant_type), np.uint8)
        width = values.shape[-1]
        n_bytes = self._function(
            quant_type, values.ctypes.data, blocks.ctypes.data, 0, values.size // width, width, None
        )
        if n_bytes != blocks.nbytes:
            raise RuntimeError(f"ggml wrote {n_bytes} bytes of {quant_type.name}; {blocks.nbytes} were expected")
        return blocks


def convert(checkpoint: Path, tokenizer: Path, out: Path, mix: QuantMix, quantiser: Quantiser) -> None:
    """Write a GGUF file of architecture qwen3moe."""
    model = load_checkpoint(checkpoint)
    writer = GGUFWriter(out, "qwen3moe")
    _add_hyperparameters(writer, model.config, mix)
    _add_tokenizer(writer, tokenizer, model.config.n_vocab)
    for name, tensor in model.tensors().items():
        values = tensor.float().numpy()
        quant_type = _quant_type(name, mix)
        if quant_type == GGMLQuantizationType.F32:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantiser(values, quant_type), raw_dtype=quant_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _quant_type(name: str, mix: QuantMix) -> GGMLQuantizationType:
    if "norm" in name or "ffn_gate_inp" in name:
        return GGMLQuantizationType.F32
    if "ffn_gate_exps" in name or "ffn_up_exps" in name:
        return mix.gate_up
    return mix.down if "ffn_down_exps" in name else mix.dense


def _add_hyperparameters(writer: GGUFWriter, config: DemoConfig, mix: QuantMix) -> None:
    writer.add_name(NAME)
    writer.add_description("Small mixture-of-experts story model for demonstrations and tests")
    writer.add_file_type(mix.file_type)
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.n_ctx)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_kv_head)
    writer.add_key_length(config.d_head)
    writer.add_value_length(config.d_head)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_expert_count(config.n_expert)
    writer.add_expert_used_count(config.n_used)
    writer.add_expert_feed_forward_length(config.d_ff)
    writer.add_vocab_size(config.n_vocab)


def _add_tokenizer(writer: GGUFWriter, path: Path, n_vocab: int) -> None:
    model = json.loads(path.read_text(encoding="utf-8"))["model"]
    texts = sorted(model["vocab"], key=model["vocab"].__getitem__)
    if len(texts) != n_vocab:
        raise ValueError(f"{path} has {len(texts)} tokens, the weights have {n_vocab}; they belong to different runs")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types([TokenType.CONTROL if text == END else TokenType.NORMAL for text in texts])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(END_ID)
    writer.add_eos_token_id(END_ID)
    writer.add_add_bos_token(False)


def _installed_library() -> Path:
    spec = importlib.util.find_spec("libggml")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("no ggml library: `pip install libggml-python`, or name a libggml-base.so with --ggml")
    return Path(spec.origin).parent / "lib64" / "libggml-base.so"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="the weights that train wrote")
    parser.add_argument("mix", choices=MIXES, help="f32; q8_0; or q4_k_m: gate and up Q4_K, down Q6_K, the rest Q8_0")
    parser.add_argument("--tokenizer", type=Path, required=True, help="the tokenizer.json that prepare wrote")
    parser.add_argument("--ggml", type=Path, help="a libggml-base.so (default: the package libggml-python's)")
    parser.add_argument("--out", type=Path, help=f"default: {NAME}.MIX.gguf")
    options = parser.parse_args(arguments)
    out = options.out or Path(f"{NAME}.{options.mix}.gguf")
    convert(options.checkpoint, options.tokenizer, out, MIXES[options.mix], Quantiser(options.ggml))
    print(f"{out}: {out.stat().st_size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
