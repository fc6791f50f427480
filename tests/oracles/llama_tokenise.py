"""llama.cpp's own tokenizer, in a process of its own because a bad file kills the process that loads it.

Called by the tokenizer tests. Only the vocabulary is loaded, so a GGUF file without tensors will do.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.oracles.llama_library import load_library


@dataclass(frozen=True, slots=True)
class Ask:
    """One text to tokenise, with llama.cpp's two switches."""

    text: str
    add_special: bool
    parse_special: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """Token ids by ask; the end-of-generation ids; and the bytes of each token that is shown, by id."""

    ids: list[list[int]]
    eog_ids: frozenset[int]
    pieces: list[bytes]


def llama_tokenise(model: Path, asks: Sequence[Ask]) -> Answer:
    """Let llama.cpp tokenise the asks with the vocabulary of a GGUF file."""
    request = json.dumps({"model": str(model), "asks": [asdict(ask) for ask in asks]})
    process = subprocess.run(
        [sys.executable, "-m", "tests.oracles.llama_tokenise"],
        input=request,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if process.returncode:
        raise AssertionError(f"llama.cpp left with {process.returncode}: {process.stderr[-2000:]}")
    reply = json.loads(process.stdout)
    return Answer(reply["ids"], frozenset(reply["eog_ids"]), [bytes.fromhex(piece) for piece in reply["pieces"]])


def _load(library: ctypes.CDLL, model: str) -> ctypes.c_void_p:
    parameters = library.llama_model_default_params()
    flags = ctypes.cast(ctypes.addressof(parameters), ctypes.POINTER(ctypes.c_uint8))
    vocabulary_only = 72  # byte of the flag in llama_model_params; five flags begin there
    assert flags[vocabulary_only : vocabulary_only + 5] == [0, 0, 1, 0, 0], "another layout of llama_model_params"
    flags[vocabulary_only] = 1
    loaded = library.llama_model_load_from_file(model.encode(), parameters)
    assert loaded, f"llama.cpp does not load {model}"
    return ctypes.c_void_p(library.llama_model_get_vocab(loaded))


def _main() -> None:
    request = json.load(sys.stdin)
    library = load_library()
    library.llama_vocab_is_eog.restype = ctypes.c_bool
    library.llama_vocab_is_eog.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    vocabulary = _load(library, request["model"])
    all_ids = []
    for ask in request["asks"]:
        text = ask["text"].encode()
        buffer = (ctypes.c_int32 * (4 * len(text) + 16))()
        length = library.llama_tokenize(
            vocabulary, text, len(text), buffer, len(buffer), ask["add_special"], ask["parse_special"]
        )
        assert length >= 0, (ask, length)
        all_ids.append(list(buffer[:length]))
    tokens = range(library.llama_vocab_n_tokens(vocabulary))
    piece = ctypes.create_string_buffer(1024)
    pieces = []
    for token in tokens:
        length = library.llama_token_to_piece(vocabulary, token, piece, len(piece), 0, False)
        pieces.append(piece.raw[:length].hex())
    eog_ids = [token for token in tokens if library.llama_vocab_is_eog(vocabulary, token)]
    print(json.dumps({"ids": all_ids, "eog_ids": eog_ids, "pieces": pieces}))


if __name__ == "__main__":
    _main()
