"""llama.cpp through ctypes on the wheel `xllamacpp`, whose extension exports llama_*: pinned, defaults checked.

Only `llama_process` imports this, in a process of its own: a bad model file kills the process. The parameter
structs are opaque buffers larger than the real ones (the x86-64 ABI passes them in memory); the fields that are set
are addressed by number, and the defaults around them are checked first, so that another version fails loudly.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

PINNED_VERSION = "2026.10.11549"
_LOG_ERROR = 4


class _Params(ctypes.Structure):
    _fields_ = [("words", ctypes.c_int32 * 128)]


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def _log_errors(level: int, text: bytes, _user: object) -> None:
    if level == _LOG_ERROR:
        sys.stderr.write(text.decode(errors="replace"))


_LOG_CALLBACK = _LogCallback(_log_errors)  # llama.cpp keeps the pointer: it must live as long as the process


def load_library() -> ctypes.CDLL:
    """The pinned library with its prototypes declared; RuntimeError when another version is installed."""
    version = importlib.metadata.version("xllamacpp")
    if version != PINNED_VERSION:
        raise RuntimeError(f"xllamacpp {version} is installed, its struct offsets are known for {PINNED_VERSION}")
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package xllamacpp is needed (requirements-dev.txt)")
    library = ctypes.CDLL(str(next(Path(spec.origin).parent.glob("xllamacpp*.so"))))
    pointer, i32, boolean = ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool
    prototypes: dict[str, tuple[object, list[object]]] = {
        "llama_model_default_params": (_Params, []),
        "llama_context_default_params": (_Params, []),
        "llama_model_load_from_file": (pointer, [ctypes.c_char_p, _Params]),
        "llama_init_from_model": (pointer, [pointer, _Params]),
        "llama_model_get_vocab": (pointer, [pointer]),
        "llama_vocab_n_tokens": (i32, [pointer]),
        "llama_batch_init": (Batch, [i32, i32, i32]),
        "llama_batch_free": (None, [Batch]),
        "llama_decode": (i32, [pointer, Batch]),
        "llama_get_logits": (ctypes.POINTER(ctypes.c_float), [pointer]),
        "llama_get_memory": (pointer, [pointer]),
        "llama_memory_clear": (None, [pointer, boolean]),
        "llama_free": (None, [pointer]),
        "llama_model_free": (None, [pointer]),
        "llama_tokenize": (i32, [pointer, ctypes.c_char_p, i32, ctypes.POINTER(i32), i32, boolean, boolean]),
        "llama_token_to_piece": (i32, [pointer, i32, ctypes.c_char_p, i32, i32, boolean]),
    }
    for name, (result, arguments) in prototypes.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    library.llama_log_set(_LOG_CALLBACK, None)
    library.llama_backend_init()
    return library


def _check(found: Sequence[int], expected: Sequence[int], what: str) -> None:
    if list(found) != list(expected):
        raise RuntimeError(f"{what} of xllamacpp {PINNED_VERSION} are {list(found)}, expected {list(expected)}")


def load_model(library: ctypes.CDLL, path: str, *, is_repacked: bool = False, has_mtp: bool = False) -> int:
    """A model's address, with its multi-token-prediction layers if `has_mtp`; ValueError when refused."""
    params = library.llama_model_default_params()
    flags = ctypes.cast(ctypes.addressof(params), ctypes.POINTER(ctypes.c_uint8))
    _check([params.words[4], flags[28], *flags[72:78]], [-1, 1, 0, 0, 1, 0, 0, 0], "model parameters")
    params.words[4] = 0  # n_gpu_layers
    flags[74] = int(is_repacked)  # use_extra_bufts: repacked copies of the weights
    flags[77] = int(has_mtp)
    model: int | None = library.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise ValueError(f"llama.cpp does not load {path}")
    return model


def make_context(
    library: ctypes.CDLL, model: int, *, n_ctx: int, n_sequence: int = 1, n_threads: int = 1, is_mtp: bool = False
) -> int:
    """A context's address; with `is_mtp` it runs the multi-token-prediction layers. ValueError when refused."""
    context = library.llama_context_default_params()
    words = context.words
    _check([words[n] for n in (0, 1, 2, 3, 9, 13, 26, 27)], [512, 2048, 512, 1, 0, -1, 1, 1], "context parameters")
    words[0] = n_ctx * n_sequence
    words[1] = words[2] = n_ctx * n_sequence  # n_batch and n_ubatch: any prompt in one pass
    words[3] = n_sequence
    words[7] = words[8] = n_threads
    words[9] = int(is_mtp)  # the context's type
    words[13] = 0  # flash attention off
    words[26] = words[27] = 0  # keys and values in f32
    made: int | None = library.llama_init_from_model(model, context)
    if not made:
        raise ValueError("llama.cpp makes no context for this model")
    return made


class LlamaModel:
    """One model and one context: KV cache in f32, flash attention off, all on the CPU."""

    def __init__(self, library: ctypes.CDLL, path: str, *, n_ctx: int, n_sequence: int, n_threads: int,
                 is_repacked: bool) -> None:  # fmt: skip
        self._library = library
        self._model = load_model(library, path, is_repacked=is_repacked)
        self._context = make_context(library, self._model, n_ctx=n_ctx, n_sequence=n_sequence, n_threads=n_threads)
        self._memory = library.llama_get_memory(self._context)
        self._vocab = library.llama_model_get_vocab(self._model)
        self.n_vocab: int = library.llama_vocab_n_tokens(self._vocab)

    def close(self) -> None:
        """Free the model; the object is unusable afterwards."""
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def clear(self) -> None:
        """Forget every sequence."""
        self._library.llama_memory_clear(self._memory, True)

    def decode(self, token_ids: Sequence[int], sequences: Sequence[int], positions: Sequence[int],
               wanted: Sequence[bool]) -> npt.NDArray[np.float32]:  # fmt: skip
        """Run one batch; logits f32 [number of wanted rows, n_vocab]."""
        n = len(token_ids)
        batch = self._library.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for row in range(n):
            batch.token[row] = token_ids[row]
            batch.pos[row] = positions[row]
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequences[row]
            batch.logits[row] = wanted[row]
        status = self._library.llama_decode(self._context, batch)
        self._library.llama_batch_free(batch)
        if status != 0:
            raise ValueError(f"llama_decode answered {status} for {n} tokens")
        logits = self._library.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, (sum(wanted), self.n_vocab)).copy()

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits of every position of one fresh sequence."""
        self.clear()
        n = len(token_ids)
        return self.decode(token_ids, [0] * n, range(n), [True] * n)

    def greedy(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> tuple[list[list[int]], dict[str, float]]:
        """The likeliest continuation of each prompt, all decoded together, and the seconds that it took.

        Each prompt is prefilled on its own. Times are wall and CPU seconds of prefill and of the n_tokens - 1
        decode steps.
        """
        self.clear()
        marks = [(time.perf_counter(), time.process_time())]
        rows = []
        for sequence, prompt in enumerate(prompts):
            n = len(prompt)
            rows.append(self.decode(prompt, [sequence] * n, range(n), [False] * (n - 1) + [True])[0])
        marks.append((time.perf_counter(), time.process_time()))
        chosen = [[int(row.argmax())] for row in rows]
        sequences = range(len(prompts))
        for step in range(n_tokens - 1):
            positions = [len(prompt) + step for prompt in prompts]
            logits = self.decode([ids[-1] for ids in chosen], sequences, positions, [True] * len(prompts))
            for ids, row in zip(chosen, logits, strict=True):
                ids.append(int(row.argmax()))
        marks.append((time.perf_counter(), time.process_time()))
        start, middle, end = marks
        return chosen, {
            "prefill_s": middle[0] - start[0],
            "prefill_cpu_s": middle[1] - start[1],
            "decode_s": end[0] - middle[0],
            "decode_cpu_s": end[1] - middle[1],
        }

    def tokenise(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text."""
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 16))()
        n = self._library.llama_tokenize(self._vocab, data, len(data), ids, len(ids), add_special, parse_special)
        if n < 0:
            raise ValueError(f"llama.cpp wants room for {-n} tokens")
        return list(ids[:n])

    def piece(self, token_id: int, *, is_special: bool) -> bytes:
        """The bytes of one token."""
        buffer = ctypes.create_string_buffer(1024)
        n = self._library.llama_token_to_piece(self._vocab, token_id, buffer, len(buffer), 0, is_special)
        if n < 0:
            raise ValueError(f"llama.cpp has no piece for token {token_id}")
        return buffer.raw[:n]
