"""Logits of tiny random models, ours against llama.cpp and against float64. `bench_exact` calls it.

A quantised file is held to llama.cpp on its dequantised twin when nothing rounds activations (float kernel and float
dense path), and to float64 when both round them in their own way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.model.expert_caller import ExpertCaller
from backbone.engine.model.model import Model
from backbone.engine.ops.torch_ops import TorchOps
from backbone.engine.serving.loaded_model import Arithmetic, Dense, KernelChoice, LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from tests.oracles.llama_cpp import LlamaCpp
from tests.oracles.model_runs import greedy, run_chunks, torch_oracle
from tests.oracles.tiny_gguf import TinyModel, write_tiny, write_tiny_pair
from tests.oracles.tiny_layout import TinyShape

Floats = npt.NDArray[np.float64]

QUANTISED = ("Q8_0", "Q4_K")  # Q4_K: gate and up in Q4_K, down, values and head in Q6_K
N_TOKENS = 32
N_GREEDY_PROMPT = 12
N_GREEDY = 8


@dataclass(frozen=True, slots=True)
class TinyFiles:
    """One architecture's files: F32, quantised ones by type, and the F32 twin of each quantised one."""

    f32: Path
    quantised: dict[str, Path]
    twins: dict[str, Path]

    @classmethod
    def write(cls, architecture: str, shape: TinyShape, folder: Path) -> Self:
        """Make the files, always with the same weights."""
        f32 = write_tiny(folder / f"{architecture}-F32.gguf", TinyModel(architecture, shape=shape))
        quantised, twins = {}, {}
        for name in QUANTISED:
            path, twin = folder / f"{architecture}-{name}.gguf", folder / f"{architecture}-{name}-twin.gguf"
            quantised[name], twins[name] = write_tiny_pair(path, twin, TinyModel(architecture, name, shape=shape))
        return cls(f32, quantised, twins)

    @property
    def served(self) -> dict[str, Path]:
        """The files that a swarm may be asked to serve, by type."""
        return {"F32": self.f32, **self.quantised}


class Apart(NamedTuple):
    """How far two computations are apart that should differ by rounding alone."""

    max_abs: float
    is_greedy_equal: bool


class RelativeErrors(NamedTuple):
    """|logits - float64| / |float64| of a token, Euclidean over its logits: the median over tokens, on one file.

    A median, because a few tokens sit at near-ties of the router: there any rounding may choose another expert, for us
    or for llama.cpp, and a mean would count mostly who was lucky.
    """

    kx1: float
    llama_cpp: float


@contextmanager
def opened(path: Path, dense: Dense, kernel: KernelChoice) -> Iterator[tuple[Model, ExpertCaller]]:
    """A model as production runs it, without workers."""
    with LoadedModel.open(
        path, n_slot=2, n_ctx=N_TOKENS + N_GREEDY, arithmetic=Arithmetic(dense, kernel=kernel)
    ) as loaded:
        yield loaded.model, ExpertDispatcher(loaded.store, NoWorkers())


def tokens_of(seed: int) -> list[int]:
    """A random prompt of byte tokens."""
    ids: list[int] = np.random.default_rng(seed).integers(0, 256, N_TOKENS).tolist()
    return ids


def from_llama_cpp(files: TinyFiles, llama_cpp: LlamaCpp) -> dict[str, Apart]:
    """Ours against llama.cpp on F32 weights, by what ran: file type and path of ours."""
    cases = {
        "F32": (files.f32, files.f32, Dense.KX1),
        "F32, torch dense path": (files.f32, files.f32, Dense.FLOAT),
        **{name: (files.quantised[name], files.twins[name], Dense.FLOAT) for name in QUANTISED},
    }
    found = {}
    for name, (path, reference, dense) in cases.items():
        llama_cpp.load(reference)
        with opened(path, dense, KernelChoice.FLOAT) as (model, experts):
            found[name] = _apart(model, experts, llama_cpp)
    return found


def _apart(model: Model, experts: ExpertCaller, llama_cpp: LlamaCpp) -> Apart:
    tokens = tokens_of(7)
    logits = run_chunks(model, experts, tokens, [len(tokens)]).numpy()
    prompt = tokens[:N_GREEDY_PROMPT]
    return Apart(
        max_abs=float(np.abs(logits - llama_cpp.logits(tokens)).max()),
        is_greedy_equal=greedy(model, experts, prompt, N_GREEDY) == llama_cpp.greedy([prompt], N_GREEDY).token_ids[0],
    )


def float64_decode(path: Path) -> float:
    """Largest difference in float64 between decoding token by token and one full pass."""
    tokens = tokens_of(7)
    with torch_oracle(path, TorchOps(torch.float64)) as (model, experts):
        full = run_chunks(model, experts, tokens, [len(tokens)])
        decoded = run_chunks(model, experts, tokens, [1] * len(tokens))
    return float((full - decoded).abs().max())


def errors_against_float64(path: Path, llama_cpp: LlamaCpp, seeds: Sequence[int]) -> RelativeErrors:
    """Ours with KX1, and llama.cpp, on the same quantised file."""
    prompts = [tokens_of(seed) for seed in seeds]
    with torch_oracle(path, TorchOps(torch.float64)) as (model, oracle):
        exact = np.stack([run_chunks(model, oracle, tokens, [N_TOKENS]).numpy() for tokens in prompts])
    with opened(path, Dense.KX1, KernelChoice.KX1) as (model, experts):
        ours = np.stack([run_chunks(model, experts, tokens, [N_TOKENS]).numpy() for tokens in prompts])
    llama_cpp.load(path)
    theirs = np.stack([llama_cpp.logits(tokens) for tokens in prompts])
    return RelativeErrors(_relative(ours, exact), _relative(theirs, exact))


def _relative(logits: npt.NDArray[np.float32], exact: Floats) -> float:
    errors = np.linalg.norm(logits.astype(np.float64) - exact, axis=-1) / np.linalg.norm(exact, axis=-1)
    return float(np.median(errors))
