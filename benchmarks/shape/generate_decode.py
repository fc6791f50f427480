"""Greedy decoding with the engine, timed step by step. `bench_generate` and `generate_profile` use it.

No sequence ends early: end-of-generation tokens are biased away, so that every run makes the same number of tokens.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from backbone.engine.dispatch.deadlines import DeadlineRule
from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.serving.engine import Engine
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.sequence import Sequence as EngineSequence
from backbone.engine.serving.tally import Tally
from backbone.engine.swarm.reply_format import ReplyFormat
from backbone.engine.swarm.sum_scale import SumScale
from backbone.engine.swarm.transport import Transport
from backbone.sampling_params import SamplingParams

ROOT = Path(__file__).resolve().parents[2]
DEMO_MODEL = ROOT / "models" / "kvasir-demo-moe.q4_k_m.gguf"
STORIES = ROOT / "tests" / "data" / "stories.txt"
N_PROMPT = 8
N_CTX = 128
NEVER = -100.0  # added to a logit
PATIENCE_S = 60.0  # with a worker: on a machine that does other things too, a late one is no lost one


@dataclass(frozen=True, slots=True)
class Decoding:
    """One run: the tokens of each prompt, and what the steps cost after the one that made the first tokens.

    CPU seconds are this process's, all of its threads together, and those of other processes where they are asked for.
    """

    token_ids: list[list[int]]
    seconds: float
    n_fallback: int  # routed pairs that the backbone's own replica computed
    cpu_s: float
    prefill_cpu_s: float  # of the step that made the first tokens

    @property
    def tok_s(self) -> float:
        """Decoded tokens a second, all sequences together."""
        return sum(len(ids) - 1 for ids in self.token_ids) / self.seconds


def decode(
    loaded: LoadedModel,
    transport: Transport,
    prompts: Sequence[Sequence[int]],
    n_tokens: int,
    *,
    sum_scale: SumScale | None = None,
    others_cpu_s: Callable[[], float] = lambda: 0.0,
) -> Decoding:
    """Prefill the prompts in one step, then decode them together to `n_tokens` each; with a scale replies are sums.

    `others_cpu_s` says how much CPU other processes that take part have used so far.
    """
    params = SamplingParams(
        temperature=0.0, max_tokens=n_tokens, logit_bias=dict.fromkeys(loaded.tokenizer.eog_ids, NEVER)
    )
    tally = Tally()
    experts = ExpertDispatcher(
        loaded.store,
        transport,
        deadline_s=PATIENCE_S,
        deadlines=DeadlineRule(shortest_s=PATIENCE_S),
        on_served=tally.add,
        reply_format=ReplyFormat.F32 if sum_scale is None else ReplyFormat.SUM,
        sum_scale=sum_scale,
    )
    engine = Engine(loaded.model, experts, max_rows=sum(map(len, prompts)))
    sequences = [EngineSequence(str(number), ids, params, loaded.tokenizer) for number, ids in enumerate(prompts)]
    marks = asyncio.run(_steps(engine, sequences, others_cpu_s))
    (_, begun), (started, prefilled), (ended, decoded) = marks
    return Decoding(
        [sequence.output_ids for sequence in sequences],
        ended - started,
        tally.n_fallback,
        cpu_s=decoded - prefilled,
        prefill_cpu_s=prefilled - begun,
    )


async def _steps(
    engine: Engine, sequences: Sequence[EngineSequence], others_cpu_s: Callable[[], float]
) -> list[tuple[float, float]]:
    """Wall and CPU clock at the start, after the first step, and at the end."""

    def mark() -> tuple[float, float]:
        return time.perf_counter(), time.process_time() + others_cpu_s()

    for sequence in sequences:
        engine.add(sequence)
    marks = [mark()]
    await _step(engine)
    marks.append(mark())
    while engine.has_work:
        await _step(engine)
    return [*marks, mark()]


async def _step(engine: Engine) -> None:
    for event in await engine.step():
        if event.error is not None:
            raise event.error


def story_beginnings(loaded: LoadedModel, n: int) -> list[list[int]]:
    """The first tokens of the first stories."""
    stories = re.split(r"\n\s*\n", STORIES.read_text().strip())[:n]
    return [loaded.tokenizer.encode(story, add_special=False, parse_special=False)[:N_PROMPT] for story in stories]
