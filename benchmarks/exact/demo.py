"""The demo model on real text: perplexity and greedy choices, ours and llama.cpp's. `bench_exact` calls it.

Stories, which blank lines or the model's end mark separate, are tokenised and joined by that mark, as in training, and
cut into windows of consecutive tokens. Each window is a sequence of its own, and every token but a window's first is
predicted from the ones before it in the window. All read the same windows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.sampling.choice import log_softmax
from backbone.engine.serving.loaded_model import Arithmetic, Dense, KernelChoice, LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from tests.oracles.llama_cpp import LlamaCpp
from tests.oracles.model_runs import forward

Window = list[int]
Logits = npt.NDArray[np.float32]
WindowLogits = Callable[[Window], Logits]

WINDOW = 256


class Reading(NamedTuple):
    """One engine's results for all windows."""

    perplexity: float
    greedy: npt.NDArray[np.int64]  # the likeliest next token at each scored position


@dataclass(frozen=True, slots=True)
class DemoFigures:
    """Perplexities, and shares of equal greedy choices at the scored positions."""

    n_windows: int
    n_scored: int
    ppl_ours: float
    ppl_llama_cpp: float
    ppl_float: float
    greedy_agree: float  # ours and llama.cpp
    greedy_ours_float: float
    greedy_llama_cpp_float: float


def measure_demo(model: Path, text: str, llama_cpp: LlamaCpp, *, max_windows: int | None = None) -> DemoFigures:
    """Read `text` with KX1, with llama.cpp, and with the float kernel over a float dense path.

    Raises ValueError when the text does not fill one window.
    """
    llama_cpp.load(model, n_ctx=WINDOW)
    with LoadedModel.open(model, n_slot=1, n_ctx=WINDOW) as loaded:
        windows = cut_windows(tokenise_stories(loaded, text))[:max_windows]
        ours = read(windows, our_logits(loaded))
    theirs = read(windows, llama_cpp.logits)
    with LoadedModel.open(
        model, n_slot=1, n_ctx=WINDOW, arithmetic=Arithmetic(Dense.FLOAT, kernel=KernelChoice.FLOAT)
    ) as loaded:
        plain = read(windows, our_logits(loaded))
    return DemoFigures(
        n_windows=len(windows),
        n_scored=len(ours.greedy),
        ppl_ours=ours.perplexity,
        ppl_llama_cpp=theirs.perplexity,
        ppl_float=plain.perplexity,
        greedy_agree=_share_equal(ours, theirs),
        greedy_ours_float=_share_equal(ours, plain),
        greedy_llama_cpp_float=_share_equal(theirs, plain),
    )


def tokenise_stories(loaded: LoadedModel, text: str) -> list[int]:
    """Token ids of all stories, each with the model's end mark behind it. Raises ValueError when it has none."""
    end = loaded.tokenizer.eos_id
    if end is None:
        raise ValueError(f"{loaded.card.name} has no end mark to put between stories")
    token_ids: list[int] = []
    for story in re.split(r"\n\s*\n", text.strip()):
        token_ids += [*loaded.tokenizer.encode(story, add_special=False, parse_special=True), end]
    return token_ids


def cut_windows(token_ids: Sequence[int]) -> list[Window]:
    """Full windows of consecutive tokens; a shorter rest is left out."""
    n_windows = len(token_ids) // WINDOW
    if n_windows == 0:
        raise ValueError(f"the text has {len(token_ids)} tokens; a window takes {WINDOW}")
    return [list(token_ids[number * WINDOW : (number + 1) * WINDOW]) for number in range(n_windows)]


def read(windows: Sequence[Window], logits_of: WindowLogits) -> Reading:
    """Score every token but the first of each window."""
    losses, choices = [], []
    for window in windows:
        logits = logits_of(window)[:-1]  # [WINDOW - 1, n_vocab]
        losses += [-log_softmax(row)[token] for row, token in zip(logits, window[1:], strict=True)]
        choices.append(logits.argmax(-1))
    return Reading(float(np.exp(np.mean(losses))), np.concatenate(choices))


def our_logits(loaded: LoadedModel) -> WindowLogits:
    """Logits of a window in a fresh slot, experts by the backbone's own replica."""
    experts = ExpertDispatcher(loaded.store, NoWorkers())

    def logits_of(window: Window) -> Logits:
        slot = loaded.model.cache.allocate()
        logits: Logits = forward(loaded.model, experts, [(slot, window)])[0].numpy()
        loaded.model.cache.free(slot)
        return logits

    return logits_of


def _share_equal(one: Reading, other: Reading) -> float:
    return float((one.greedy == other.greedy).mean())
