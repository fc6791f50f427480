"""The interface of an expert kernel, shared by the worker, the backbone's replica and the audits.

A kernel turns rows and (row, local expert id) pairs into one output row per pair. Its result for a pair depends
only on that row and that expert, never on the rest of the call: batching and placement cannot change a bit.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvasir.experts import FloatRows, LayerExperts

KX1_NAME = "kx1"
KX1_VERSION = 1  # of docs/reference/kx1.md; frozen
FLOAT_NAME = "float"
FLOAT_VERSION = 1

Floats = npt.NDArray[np.float32]
EncodedRows = npt.NDArray[np.uint8]  # [n, row_bytes]
Pairs = npt.NDArray[np.int32]  # [n_pairs]


class RowFormat(IntEnum):
    """The encoding of rows on their way to a kernel. The number is the wire's dtype code."""

    F32 = 1  # 4 bytes a value, little-endian
    KX1 = 2  # 261 bytes per 256 values: KX1's own quantised activations


class LoadedExperts(Protocol):
    """The experts of one layer, ready to compute. Safe to call from several threads."""

    @property
    def layer(self) -> int: ...
    @property
    def n_expert(self) -> int: ...
    @property
    def d_model(self) -> int: ...

    def compute(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs) -> FloatRows:
        """Compute expert `pair_ids[i]` (a local id) for `rows[pair_rows[i]]`: f32 [n_pairs, d_model], unweighted.

        Raises KernelError, before any native code runs, for rows of the wrong shape or with values that the
        format forbids, for row numbers or ids that do not exist, and for rows that are not finite.
        """
        ...


class ExpertKernel(Protocol):
    """A way to compute experts. Two sides may share work only if their fingerprints are equal."""

    @property
    def name(self) -> str: ...
    @property
    def row_format(self) -> RowFormat: ...
    @property
    def fingerprint(self) -> str:
        """64 hex digits, see `kernel_fingerprint`."""
        ...

    def refusal(self, experts: LayerExperts) -> str | None:
        """Return why this kernel cannot compute these experts, or None if it can."""
        ...

    def load(self, experts: LayerExperts) -> LoadedExperts:
        """Prepare experts in place; raises KernelError with `refusal`'s reason."""
        ...

    def encode_rows(self, rows: FloatRows) -> EncodedRows:
        """Encode rows f32 [n, d_model], losslessly for this kernel. Raises KernelError if they are not finite."""
        ...

    def row_bytes(self, d_model: int) -> int:
        """Return the bytes of one encoded row."""
        ...


def kernel_fingerprint(name: str, version: int, digest: str) -> str:
    """Return 64 hex digits over a kernel's name, its version and the digest that its self-test returned.

    Equal fingerprints mean the same name, the same version of the specification and the same bits on the self-test,
    whichever build or instruction set computed them.
    """
    return hashlib.sha256(f"{name} {version} {digest}".encode()).hexdigest()
