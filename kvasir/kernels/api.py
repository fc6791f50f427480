"""What an expert kernel is: the interface that the worker, the backbone's replica and the audits share.

A kernel turns rows and (row, local expert id) pairs into one output row per pair. Its result for a pair depends
on that row and that expert alone, never on what else is in the call: batching and placement cannot change a bit.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvasir.experts import FloatRows, LayerExperts

Floats = npt.NDArray[np.float32]
EncodedRows = npt.NDArray[np.uint8]  # [n, row_bytes]
Pairs = npt.NDArray[np.int32]  # [n_pairs]


class RowFormat(IntEnum):
    """How rows travel to a kernel. The number is the wire's dtype code."""

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
        """Outputs of `pair_ids[i]` (local ids) for `rows[pair_rows[i]]`: f32 [n_pairs, d_model], unweighted.

        Raises KernelError, before any native code runs, for rows of the wrong shape or with values that the
        format forbids, for row numbers or ids that do not exist, and for rows that are not finite.
        """
        ...


class ExpertKernel(Protocol):
    """A way to compute experts. Two sides may share work only when their fingerprints are equal."""

    @property
    def name(self) -> str: ...
    @property
    def row_format(self) -> RowFormat: ...
    @property
    def fingerprint(self) -> str:
        """64 hex digits over name, version and the outputs of the self-test."""
        ...

    def refusal(self, experts: LayerExperts) -> str | None:
        """Why this kernel cannot compute these experts, or None when it can."""
        ...

    def load(self, experts: LayerExperts) -> LoadedExperts:
        """Prepare experts in place; raises KernelError with `refusal`'s reason."""
        ...

    def encode_rows(self, rows: FloatRows) -> EncodedRows:
        """Rows f32 [n, d_model] as they travel, lossless for this kernel. Raises KernelError if not finite."""
        ...

    def row_bytes(self, d_model: int) -> int:
        """Bytes of one encoded row."""
        ...
