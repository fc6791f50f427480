"""The process in which llama.cpp runs: `python -m tests.oracles.llama_process`, started by `llama_cpp.LlamaCpp`.

One JSON request a line on stdin; a JSON line on stdout answers it, followed by raw little-endian f32 values when the
line has a `shape`. What llama.cpp itself prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tests.oracles.llama_library import LlamaModel, load_library
from tests.oracles.llama_mtp import mtp_logits

Answer = tuple[dict[str, Any], npt.NDArray[np.float32] | None]


class Server:
    """Holds at most one model and answers requests about it."""

    def __init__(self) -> None:
        self._library = load_library()
        self._model: LlamaModel | None = None

    def answer(self, request: dict[str, Any]) -> Answer:
        """Answer one request; ValueError for what llama.cpp refuses."""
        operation = request.pop("operation")
        if operation == "load":
            return self._load(request), None
        if operation == "mtp_logits":
            return {}, mtp_logits(self._library, **request)
        if self._model is None:
            raise ValueError("no model is loaded")
        match operation:
            case "logits":
                return {}, self._model.logits(request["token_ids"])
            case "greedy":
                chosen, times = self._model.greedy(request["prompts"], request["n_tokens"])
                return {"token_ids": chosen, "times": times}, None
            case "tokenise":
                return {"token_ids": self._model.tokenise(**request)}, None
            case "piece":
                return {"hex": self._model.piece(request["token_id"], is_special=request["is_special"]).hex()}, None
            case _:
                raise ValueError(f"unknown operation {operation}")

    def _load(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._model is not None:
            self._model.close()
            self._model = None
        self._model = LlamaModel(self._library, **request)
        return {"n_vocab": self._model.n_vocab}


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until stdin ends."""
    server = Server()
    for line in requests:
        try:
            head, values = server.answer(json.loads(line))
        except ValueError as error:
            head, values = {"error": str(error)}, None
        if values is not None:
            head["shape"] = values.shape
        answers.write(json.dumps(head).encode() + b"\n")
        if values is not None:
            answers.write(values.astype("<f4").tobytes())
        answers.flush()


def main() -> None:
    """Keep the real stdout for answers and send everything else that is printed to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
