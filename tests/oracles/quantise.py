"""Float weights to GGUF quant blocks, by ggml's own code (`libggml-python` through ctypes).

Tests and benchmarks use it to make small model files. gguf-py cannot quantise K-quants; production code never
quantises weights at all.
"""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize


@cache
def _ggml() -> ctypes.CDLL:
    spec = importlib.util.find_spec("libggml")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package libggml-python is needed (requirements-dev.txt)")
    library = ctypes.CDLL(str(Path(spec.origin).parent / "lib64" / "libggml-base.so"))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
    ]
    return library


def quantise(values: npt.NDArray[np.float32], quant_type: GGMLQuantizationType) -> npt.NDArray[np.uint8]:
    """Values f32 [..., n] as blocks uint8 [..., row_bytes]; F32, F16 and BF16 are plain conversions.

    Raises ValueError when n is not a whole number of quant blocks.
    """
    block_weights, block_bytes = GGML_QUANT_SIZES[quant_type]
    n = values.shape[-1]
    if n % block_weights:
        raise ValueError(f"rows of {n} values are not whole {quant_type.name} blocks of {block_weights}")
    source = np.ascontiguousarray(values, np.float32)
    if quant_type == GGMLQuantizationType.F32:
        return source.view(np.uint8)
    blocks = np.empty((*values.shape[:-1], n // block_weights * block_bytes), np.uint8)
    written = _ggml().ggml_quantize_chunk(
        int(quant_type), source.ctypes.data, blocks.ctypes.data, 0, values.size // n, n, None
    )
    if written != blocks.nbytes:
        raise RuntimeError(f"ggml wrote {written} bytes of {quant_type.name}, {blocks.nbytes} were expected")
    return blocks


def dequantise(blocks: npt.NDArray[np.uint8], quant_type: GGMLQuantizationType) -> npt.NDArray[np.float32]:
    """Blocks uint8 [..., row_bytes] as f32 [..., n]."""
    return np.asarray(dequantize(blocks, quant_type), np.float32)
