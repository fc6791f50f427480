"""llama.cpp as the independent truth: logits, greedy decoding and tokenising, in a process of its own.

Tests and benchmarks use `LlamaCpp`. A model file that kills llama.cpp, or a call that takes too long, gives a
`LlamaCppError` here and nothing worse.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

_ROOT = Path(__file__).resolve().parents[2]


class LlamaCppError(RuntimeError):
    """llama.cpp refused, died, or did not answer in time."""


@dataclass(frozen=True, slots=True)
class GreedyRun:
    """Greedy continuations, and what they cost in wall and CPU seconds."""

    token_ids: list[list[int]]
    prefill_s: float
    prefill_cpu_s: float
    decode_s: float
    decode_cpu_s: float


class LlamaCpp:
    """A llama.cpp process; `load` as many files one after another as needed. A context manager."""

    def __init__(self, *, deadline_s: float = 120.0) -> None:
        self._deadline_s = deadline_s
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.oracles.llama_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=_ROOT,
            bufsize=0,
        )
        self._buffer = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process, for those who look at its memory."""
        return self._process.pid

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def load(
        self, path: Path, *, n_ctx: int = 512, n_sequence: int = 1, n_threads: int = 1, is_repacked: bool = False
    ) -> int:
        """Load a GGUF file in place of the one before; returns the vocabulary's size.

        `n_ctx` counts tokens a sequence. `is_repacked` allows llama.cpp its repacked copies of the weights.
        """
        request = {
            "path": str(Path(path).absolute()),
            "n_ctx": n_ctx,
            "n_sequence": n_sequence,
            "n_threads": n_threads,
            "is_repacked": is_repacked,
        }
        return int(self._ask("load", request)["n_vocab"])

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits f32 [n, n_vocab] after each token of a fresh sequence."""
        head = self._ask("logits", {"token_ids": [int(token) for token in token_ids]})
        rows, columns = head["shape"]
        data = self._read(4 * rows * columns)
        return np.frombuffer(data, "<f4").reshape(rows, columns).astype(np.float32)

    def mtp_logits(self, path: Path, token_ids: Sequence[int], n_chained: int) -> npt.NDArray[np.float32]:
        """What the multi-token-prediction layer of a file makes of a sequence: f32 [n - 1 + n_chained, n_vocab].

        Row p has the token p + 1 and the target's hidden state of p; the chained rows after them go on greedily from
        their own. Any other loaded model stays.
        """
        request = {"path": str(Path(path).absolute()), "token_ids": [*map(int, token_ids)], "n_chained": n_chained}
        rows, columns = self._ask("mtp_logits", request)["shape"]
        return np.frombuffer(self._read(4 * rows * columns), "<f4").reshape(rows, columns).astype(np.float32)

    def greedy(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> GreedyRun:
        """The likeliest `n_tokens` after each prompt; the prompts are decoded together (load with n_sequence)."""
        head = self._ask("greedy", {"prompts": [list(map(int, p)) for p in prompts], "n_tokens": n_tokens})
        return GreedyRun(token_ids=head["token_ids"], **head["times"])

    def tokenise(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Token ids of a text, with special tokens' spellings recognised if `parse_special`."""
        request = {"text": text, "add_special": add_special, "parse_special": parse_special}
        return list(self._ask("tokenise", request)["token_ids"])

    def piece(self, token_id: int, *, is_special: bool = True) -> bytes:
        """The bytes that a token stands for; special tokens are spelled out if `is_special`."""
        return bytes.fromhex(self._ask("piece", {"token_id": token_id, "is_special": is_special})["hex"])

    def _ask(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        line = json.dumps({"operation": operation, **request}).encode() + b"\n"
        if self._process.stdin is None:
            raise LlamaCppError("the llama.cpp process has no stdin")
        try:
            self._process.stdin.write(line)
        except BrokenPipeError:
            raise self._died(operation) from None
        head: dict[str, Any] = json.loads(self._read_line(operation))
        if "error" in head:
            raise LlamaCppError(head["error"])
        return head

    def _read_line(self, operation: str) -> bytes:
        limit = time.monotonic() + self._deadline_s
        while b"\n" not in self._buffer:
            self._fill(limit, operation)
        end = self._buffer.index(b"\n") + 1
        return self._take(end)

    def _read(self, n_bytes: int) -> bytes:
        limit = time.monotonic() + self._deadline_s
        while len(self._buffer) < n_bytes:
            self._fill(limit, "values")
        return self._take(n_bytes)

    def _take(self, n_bytes: int) -> bytes:
        data = bytes(self._buffer[:n_bytes])
        del self._buffer[:n_bytes]
        return data

    def _fill(self, limit: float, operation: str) -> None:
        if self._process.stdout is None:
            raise LlamaCppError("the llama.cpp process has no stdout")
        descriptor = self._process.stdout.fileno()
        ready, _, _ = select.select([descriptor], [], [], max(0.0, limit - time.monotonic()))
        if not ready:
            raise LlamaCppError(f"{operation}: no answer from llama.cpp within {self._deadline_s} s")
        data = os.read(descriptor, 1 << 20)
        if not data:
            raise self._died(operation)
        self._buffer += data

    def _died(self, operation: str) -> LlamaCppError:
        status = self._process.wait()
        self._errors.seek(0)
        tail = self._errors.read()[-2000:].decode(errors="replace").strip()
        return LlamaCppError(f"{operation}: the llama.cpp process ended with status {status}: {tail}")
