"""The fingerprint: a SHA-256 that identifies a model's content, independent of file names and splits.

`ModelCard` carries it, slices repeat it, and the handshake compares it. It is computed over

1. every metadata pair in order of its key, as stored, except `split.*` and `general.alignment`, which only describe
   the layout in files;
2. the tensor table in order of name: name, shape, type;
3. the bytes of the tensors, in the same order.

It detects every difference in metadata and in the tensor table, and every difference in the data if the tensors have at
most FULL_DATA_BYTES together. Above that, hashing would take minutes, so tensors above SAMPLE_COUNT * SAMPLE_BYTES are
sampled: SAMPLE_COUNT pieces of SAMPLE_BYTES, evenly spread, including the first and the last bytes. A tensor that was
trained further, quantised in another way or replaced differs in every page and is detected; a few flipped bits between
the samples are not. The per-expert SHA-256 manifest (`kvasir.slicing.manifest`) covers every byte.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext

from kvasir.gguf.index import GGUFIndex, TensorInfo

FULL_DATA_BYTES = 256 << 20
SAMPLE_COUNT = 8
SAMPLE_BYTES = 4096
_SCHEME = b"kvasir-model-1\n"
_LAYOUT_KEYS = ("general.alignment",)
_READ_BYTES = 8 << 20


def fingerprint_of(index: GGUFIndex, full_data_bytes: int = FULL_DATA_BYTES) -> str:
    """Return the fingerprint of an open model, 64 hex digits. Two sides must use the same `full_data_bytes`."""
    digest = hashlib.sha256(_SCHEME)
    for key in sorted(index.metadata):
        if not key.startswith("split.") and key not in _LAYOUT_KEYS:
            _add_framed(digest, key.encode())
            _add_framed(digest, index.metadata.raw(key))
    tensors = [index.tensors[name] for name in sorted(index.tensors)]
    for info in tensors:
        _add_framed(digest, json.dumps([info.name, info.shape, int(info.quant_type)]).encode())
    is_sampled = sum(info.n_bytes for info in tensors) > full_data_bytes
    with index.random_access() if is_sampled else nullcontext():
        for info in tensors:
            _add_data(digest, index, info, is_sampled)
    return digest.hexdigest()


def _add_framed(digest: hashlib._Hash, data: bytes) -> None:
    """Hash the length before the data, so that different sequences of pieces have different digests."""
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)


def _add_data(digest: hashlib._Hash, index: GGUFIndex, info: TensorInfo, is_sampled: bool) -> None:
    if not is_sampled or info.n_bytes <= SAMPLE_COUNT * SAMPLE_BYTES:
        for start in range(0, info.n_bytes, _READ_BYTES):
            digest.update(index.read_at(info.part, info.offset + start, min(_READ_BYTES, info.n_bytes - start)))
        return
    last_start = info.n_bytes - SAMPLE_BYTES
    for number in range(SAMPLE_COUNT):
        start = last_start * number // (SAMPLE_COUNT - 1)
        digest.update(index.read_at(info.part, info.offset + start, SAMPLE_BYTES))
