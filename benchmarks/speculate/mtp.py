"""Measure what drafts of an MTP head bring where it is right as often as we choose. Used by `bench_speculate`.

The model is made: its layers compute and add nothing, so that the next token is a function of the last one, and its
head takes a chosen share of all tokens for others. The texts are walks through the vocabulary that seldom repeat
anything, so that they suggest few drafts themselves.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.sampling_params import SamplingParams
from benchmarks.speculate.run import Request, Run, decode
from tests.oracles.mtp_models import write_right_head
from tests.oracles.tiny_layout import TinyShape

RIGHT_SHARES = (0.5, 0.8)
MAX_DRAFTS = 8
REQUESTS_PER_SLOT = 3

Figures = dict[str, dict[str, dict[str, dict[str, float]]]]  # by name, share, round trip and batch

# Of a round without and with drafts.
_FIGURES: Mapping[str, Callable[[Run, Run], float]] = {
    "mtp_gain": lambda off, auto: off.seconds / auto.seconds,
    "mtp_steps_per_token": lambda off, auto: auto.n_steps / off.n_steps,
    "mtp_accepted_share": lambda off, auto: auto.drafts.accepted / max(auto.drafts.drafted, 1),
}
MTP_FIGURES = tuple(_FIGURES)


@dataclass(frozen=True, slots=True)
class MtpPlan:
    """A model, tokens of an answer by how many are made at once, and rounds."""

    shape: TinyShape
    n_tokens: Mapping[int, int]
    n_rounds: int


FULL = MtpPlan(TinyShape(n_layer=32, n_expert=16, n_used=4, n_vocab=16_384, n_mtp_layer=1), {1: 64, 8: 32}, 3)
QUICK = MtpPlan(TinyShape(n_layer=2, n_expert=4, n_used=2, n_vocab=512, n_mtp_layer=1), {1: 12, 2: 12}, 1)


def mtp_figures(plan: MtpPlan, round_trips_ms: Sequence[int]) -> Figures:
    """Medians of the rounds. Raises RuntimeError when a token differs."""
    figures: Figures = {name: {} for name in _FIGURES}
    for share in RIGHT_SHARES:
        with tempfile.TemporaryDirectory() as folder:
            path = write_right_head(Path(folder) / "m.gguf", plan.shape, wrong_share=1 - share)
            for batch in plan.n_tokens:
                for ms, rounds in _rounds(path, plan, batch, round_trips_ms):
                    for name, figure in _FIGURES.items():
                        value = round(statistics.median(figure(*pair) for pair in rounds), 3)
                        figures[name].setdefault(str(share), {}).setdefault(str(ms), {})[str(batch)] = value
    return figures


def _rounds(
    path: Path, plan: MtpPlan, batch: int, round_trips_ms: Sequence[int]
) -> Iterator[tuple[int, list[tuple[Run, Run]]]]:
    """All rounds by milliseconds of a round trip; the file is open twice, its head left alone and in use."""
    with ExitStack() as stack:
        plain, drafting = (
            stack.enter_context(LoadedModel.open(path, n_slot=batch, n_ctx=512, n_threads=1, has_mtp_head=has_head))
            for has_head in (False, True)
        )
        for ms in round_trips_ms:
            yield ms, [_round(plain, drafting, plan.n_tokens[batch], ms / 1000, n) for n in range(plan.n_rounds)]


def _round(
    plain: LoadedModel, drafting: LoadedModel, n_tokens: int, round_trip_s: float, number: int
) -> tuple[Run, Run]:
    """Without drafts and with them, each first in every other round.

    There are more requests than slots, so that who is done early makes room for the next.
    """
    params = SamplingParams(temperature=0.0, max_tokens=n_tokens)
    n_requests = REQUESTS_PER_SLOT * plain.model.cache.n_slot
    requests = [Request([(1000 * number + 7 * n) % plain.model.n_vocab], params) for n in range(n_requests)]
    runs = {}
    for max_drafts in (0, MAX_DRAFTS)[:: 1 if number % 2 else -1]:
        loaded = drafting if max_drafts else plain
        runs[max_drafts] = decode(loaded, requests, round_trip_s=round_trip_s, max_drafts=max_drafts)
    if runs[0].token_ids != runs[MAX_DRAFTS].token_ids:
        raise RuntimeError(f"{number}: a token with drafts is not the one without")
    return runs[0], runs[MAX_DRAFTS]
