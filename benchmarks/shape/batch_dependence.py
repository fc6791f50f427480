"""Check whether a bit of a sequence's logits depends on what runs beside it, or on how its prompt is cut.

`bench_vs_llamacpp` runs it on the exact dense path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.serving.engine import Engine
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.sequence import Sequence as EngineSequence
from backbone.engine.serving.token_choice import Logits
from backbone.engine.swarm.transport import NoWorkers
from backbone.sampling_params import SamplingParams

N_TOKENS = 4
PROMPT = [(7 * column) % 199 + 1 for column in range(19)]


def is_batch_invariant(loaded: LoadedModel, n_slot: int) -> bool:
    """Compare one sequence alone with itself in batches of 2, 3, 8 and all slots with its prompt in other chunks."""
    alone = _logits(loaded, [], max_rows=64)
    for n_others, max_rows in ((1, 64), (2, 7), (7, 64), (n_slot - 1, 64), (n_slot - 1, 33)):
        others = [[(13 * row + column) % 211 + 1 for column in range(3 + row % 11)] for row in range(n_others)]
        beside = _logits(loaded, others, max_rows=max_rows)
        if len(beside) != len(alone) or not all(map(np.array_equal, alone, beside)):
            return False
    return True


def _logits(loaded: LoadedModel, others: Sequence[Sequence[int]], *, max_rows: int) -> list[Logits]:
    """The watched sequence's logits, token by token, while `others` run beside it."""
    seen: list[Logits] = []

    def see(sequence: EngineSequence, logits: Logits) -> None:
        if sequence.request_id == "watched":
            seen.append(logits.copy())

    params = SamplingParams(temperature=0.0, max_tokens=N_TOKENS)
    engine = Engine(loaded.model, ExpertDispatcher(loaded.store, NoWorkers()), max_rows=max_rows, on_logits=see)
    for number, prompt in enumerate(others):
        engine.add(EngineSequence(str(number), prompt, params, loaded.tokenizer))
    engine.add(EngineSequence("watched", PROMPT, params, loaded.tokenizer))
    asyncio.run(_run(engine))
    return seen


async def _run(engine: Engine) -> None:
    while engine.has_work:
        for event in await engine.step():
            if event.error is not None:
                raise event.error
