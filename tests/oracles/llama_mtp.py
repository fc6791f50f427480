"""llama.cpp's multi-token prediction through ctypes: logits of a model file's own draft layer, row by row.

`llama_process` calls it. The functions that give and take hidden states are C++ symbols of the pinned version.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tests.oracles.llama_library import Batch, load_model, make_context

FloatRows = npt.NDArray[np.float32]
_FLOATS = ctypes.POINTER(ctypes.c_float)


def mtp_logits(library: ctypes.CDLL, path: str, token_ids: Sequence[int], n_chained: int) -> FloatRows:
    """See `LlamaCpp.mtp_logits`; ValueError for what llama.cpp refuses."""
    n = len(token_ids) - 1
    model = load_model(library, path, has_mtp=True)
    target, draft = (make_context(library, model, n_ctx=n + n_chained + 1, is_mtp=is_mtp) for is_mtp in (False, True))
    try:
        run = _Run(library, model)
        hidden = run.decode(target, token_ids[:n], 0)[1]
        logits, hidden = run.decode(draft, token_ids[1:], 0, hidden)
        found = [logits]
        for number in range(n_chained):
            likeliest = [int(found[-1][-1].argmax())]
            logits, hidden = run.decode(draft, likeliest, n + number, hidden[-1:])
            found.append(logits)
        return np.concatenate(found)
    finally:
        library.llama_free(target)
        library.llama_free(draft)
        library.llama_model_free(model)


class _Run:
    """Decodes with all logits and all hidden states."""

    def __init__(self, library: ctypes.CDLL, model: int) -> None:
        self._library = library
        self._keep = library._Z26llama_set_embeddings_nextnP13llama_contextbb
        self._keep.restype, self._keep.argtypes = None, [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool]
        self._hidden = library._Z26llama_get_embeddings_nextnP13llama_context
        self._hidden.restype, self._hidden.argtypes = _FLOATS, [ctypes.c_void_p]
        width, vocab = library.llama_model_n_embd, library.llama_model_get_vocab
        width.restype, width.argtypes = ctypes.c_int32, [ctypes.c_void_p]
        self._d_model: int = width(model)
        self._n_vocab: int = library.llama_vocab_n_tokens(vocab(model))

    def decode(
        self, context: int, token_ids: Sequence[int], position: int, hidden: FloatRows | None = None
    ) -> tuple[FloatRows, FloatRows]:
        """Logits and hidden states of consecutive rows of sequence 0; a draft layer wants hidden states too."""
        n, integer = len(token_ids), ctypes.c_int32
        sequence = (integer * 1)(0)
        one = ctypes.cast(sequence, ctypes.POINTER(integer))
        given = None if hidden is None else np.ascontiguousarray(hidden, np.float32)
        batch = Batch(
            n,
            (integer * n)(*token_ids),
            None if given is None else given.ctypes.data_as(_FLOATS),
            (integer * n)(*range(position, position + n)),
            (integer * n)(*([1] * n)),
            (ctypes.POINTER(integer) * n)(*([one] * n)),
            (ctypes.c_int8 * n)(*([1] * n)),
        )
        self._keep(context, True, False)
        status = self._library.llama_decode(context, batch)
        if status != 0:
            raise ValueError(f"llama_decode answered {status} for {n} tokens")
        logits = np.ctypeslib.as_array(self._library.llama_get_logits(context), (n, self._n_vocab)).copy()
        return logits, np.ctypeslib.as_array(self._hidden(context), (n, self._d_model)).copy()
