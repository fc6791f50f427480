"""The experts of one layer that came in several slices, as if they had come in one.

`holdings` joins what an agent has fetched piece by piece. Each slice stays mapped as it is; a pair goes to the slice
that has its expert, and since a kernel's result does not depend on a pair's company no bit changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvasir.errors import KernelError
from kvasir.experts import FloatRows
from kvasir.kernels.api import EncodedRows, LoadedExperts, Pairs


class JoinedExperts:
    """Implements `LoadedExperts` over parts; local ids count through them in their order."""

    def __init__(self, parts: Sequence[LoadedExperts]) -> None:
        self._parts = tuple(parts)
        self._first_ids = np.cumsum([0, *(part.n_expert for part in self._parts)], dtype=np.int32)

    @property
    def layer(self) -> int:
        return self._parts[0].layer

    @property
    def n_expert(self) -> int:
        return int(self._first_ids[-1])

    @property
    def d_model(self) -> int:
        return self._parts[0].d_model

    def compute(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs) -> FloatRows:
        """As `LoadedExperts.compute`: f32 [n_pairs, d_model]."""
        if len(pair_ids) and not 0 <= int(pair_ids.min()) <= int(pair_ids.max()) < self.n_expert:
            raise KernelError(f"a local id is outside 0 to {self.n_expert - 1} of layer {self.layer}")
        outputs = np.empty((len(pair_ids), self.d_model), np.float32)
        part_of = np.searchsorted(self._first_ids, pair_ids, side="right") - 1
        for number, part in enumerate(self._parts):
            places = np.flatnonzero(part_of == number)
            if len(places):
                local_ids = pair_ids[places] - self._first_ids[number]
                outputs[places] = part.compute(rows, pair_rows[places], local_ids)
        return outputs
