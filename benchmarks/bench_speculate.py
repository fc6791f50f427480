"""Measure what drafts bring: tokens a second and steps a token with and without them, near and far from the workers.

`python -m benchmarks.bench_speculate [--json] [--quick]`. The demo model at batch 1, 8 and 64, with free text and with
text that repeats its prompt; answers of experts come at once, or a round trip of 20 ms later. The clock is this
thread's CPU time plus the waiting, which is skipped (`emulator.clock`). All tokens of both runs are compared. Then the
same with a made model whose MTP head is right as often as we choose, and what such a head costs at the 122B's shape.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backbone.engine.serving.loaded_model import LoadedModel
from benchmarks.bench_exact import ROOT
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.speculate.head import head_ms
from benchmarks.speculate.mtp import FULL as FULL_MTP
from benchmarks.speculate.mtp import QUICK as QUICK_MTP
from benchmarks.speculate.mtp import mtp_figures
from benchmarks.speculate.run import Run, decode
from benchmarks.speculate.texts import free_requests, repeating_requests
from benchmarks.speculate.undo import undo_ms

MODEL = ROOT / "models" / "kvasir-demo-moe.q4_k_m.gguf"
MAX_DRAFTS = 8
TEXTS = ("repeating", "free")
ROUND_TRIPS_MS = (0, 20)
N_KEPT = 4  # rows that are run again, where undoing is measured


@dataclass(frozen=True, slots=True)
class Plan:
    """Tokens of an answer by batch, and rounds."""

    n_tokens: dict[int, int]
    n_rounds: int


FULL = Plan({1: 256, 8: 192, 64: 48}, 3)
QUICK = Plan({1: 12, 2: 12}, 1)


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of text, milliseconds of a round trip, requests at once."""

    text: str
    round_trip_ms: int
    batch: int


Rounds = dict[Case, list[tuple[Run, Run]]]  # without drafts, and with


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a smoke run whose figures mean nothing")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    with LoadedModel.open(MODEL, n_slot=max(plan.n_tokens), n_ctx=512, n_threads=1) as loaded:
        rounds = measure(loaded, plan)
    figures = as_keys(rounds) | mtp_figures(QUICK_MTP if options.quick else FULL_MTP, ROUND_TRIPS_MS)
    figures |= {"head_ms_122b": head_ms(is_quick=options.quick)} | describe()
    print(json.dumps(figures) if options.json else as_table(rounds, figures))


def measure(loaded: LoadedModel, plan: Plan) -> Rounds:
    """Run all rounds, both ways in turns. Raises RuntimeError when a token differs."""
    asked = {
        (text, batch): make(loaded, batch, n_tokens)
        for text, make in (("repeating", repeating_requests), ("free", free_requests))
        for batch, n_tokens in plan.n_tokens.items()
    }
    rounds: Rounds = {Case(text, ms, batch): [] for text in TEXTS for ms in ROUND_TRIPS_MS for batch in plan.n_tokens}
    for number in range(plan.n_rounds):
        for case, pairs in rounds.items():
            runs = {}
            for max_drafts in (0, MAX_DRAFTS)[:: 1 if number % 2 else -1]:
                runs[max_drafts] = decode(
                    loaded,
                    asked[case.text, case.batch],
                    round_trip_s=case.round_trip_ms / 1000,
                    max_drafts=max_drafts,
                )
            if runs[0].token_ids != runs[MAX_DRAFTS].token_ids:
                raise RuntimeError(f"{case}: a token with drafts is not the one without")
            pairs.append((runs[0], runs[MAX_DRAFTS]))
    return rounds


def median(pairs: list[tuple[Run, Run]], figure: Callable[[Run, Run], float]) -> float:
    """Of the rounds."""
    return float(statistics.median(figure(*pair) for pair in pairs))


# Of a round without and with drafts.
FIGURES: dict[str, Callable[[Run, Run], float]] = {
    "gain": lambda off, auto: off.seconds / auto.seconds,
    "seat_gain": lambda off, auto: off.seat_seconds / auto.seat_seconds,
    "tok_s_off": lambda off, auto: off.n_decoded / off.seconds,
    "tok_s_auto": lambda off, auto: auto.n_decoded / auto.seconds,
    "steps_per_token": lambda off, auto: auto.n_steps / off.n_steps,
    "accepted_share": lambda off, auto: auto.drafts.accepted / max(auto.drafts.drafted, 1),
}


def as_keys(rounds: Rounds) -> dict[str, Any]:
    """The figures by name, text, milliseconds of round trip and batch."""
    figures: dict[str, Any] = {}
    for name, figure in FIGURES.items():
        for case, pairs in rounds.items():
            by_batch = figures.setdefault(name, {}).setdefault(case.text, {}).setdefault(str(case.round_trip_ms), {})
            by_batch[str(case.batch)] = round(median(pairs, figure), 3)
    return {
        **figures,
        "identical": True,  # else `measure` has raised
        "undo_ms_122b": undo_ms(N_KEPT),
    }


def describe() -> dict[str, str]:
    """Return where and of what this is."""
    return {"machine": describe_machine(), "commit": describe_commit()}


def as_table(rounds: Rounds, figures: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [f"{'text':<12}{'ms':>4}{'batch':>7}" + "".join(f"{name:>17}" for name in FIGURES)]
    for case, pairs in rounds.items():
        values = "".join(f"{median(pairs, figure):>17.3f}" for figure in FIGURES.values())
        lines.append(f"{case.text:<12}{case.round_trip_ms:>4}{case.batch:>7}{values}")
    others = (name for name in figures if name not in (*FIGURES, "identical"))
    return "\n".join([*lines, *(f"{name}: {figures[name]}" for name in others)])


if __name__ == "__main__":
    main()
