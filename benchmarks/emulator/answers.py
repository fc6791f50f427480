"""Right answers of emulated workers: computed by the real kernel once, and kept for runs that ask the same again.

A kernel's output depends on row and expert alone, so runs with the same prompts share their answers whichever worker is
asked. `emulator.worker` computes through this.
"""

from __future__ import annotations

import numpy as np

from kvasir.experts import FloatRows
from kvasir.kernels.api import EncodedRows, LoadedExperts, Pairs

MAX_BYTES = 1 << 30

_Key = tuple[int, int, bytes]  # layer, expert and row


class AnswerBook:
    """Outputs by layer, expert and row. Forgets everything when it holds `max_bytes`."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._known: dict[_Key, FloatRows] = {}

    def outputs(self, experts: LoadedExperts, rows: EncodedRows, pair_rows: Pairs, expert_ids: Pairs) -> FloatRows:
        """Return what `experts.compute` gives: f32 [n_pairs, d_model]."""
        row_keys = [row.tobytes() for row in rows]
        pairs = zip(pair_rows.tolist(), expert_ids.tolist(), strict=True)
        keys = [(experts.layer, expert, row_keys[row]) for row, expert in pairs]
        missing = [place for place, key in enumerate(keys) if key not in self._known]
        answer = np.empty((len(keys), experts.d_model), np.float32)
        computed = experts.compute(rows, pair_rows[missing], expert_ids[missing]) if missing else answer[:0]
        answer[missing] = computed
        if len(missing) < len(keys):
            is_known = np.ones(len(keys), np.bool_)
            is_known[missing] = False
            answer[is_known] = [self._known[key] for key, known in zip(keys, is_known, strict=True) if known]
        self._keep([keys[place] for place in missing], computed)
        return answer

    def _keep(self, keys: list[_Key], outputs: FloatRows) -> None:
        if self._n_bytes > self._max_bytes:
            self._known.clear()
            self._n_bytes = 0
        self._known.update(zip(keys, outputs, strict=True))
        self._n_bytes += outputs.nbytes + sum(len(row) for _, _, row in keys)
