"""Whether a sequence's logits depend on its batch: asked of the very model that `bench_vs_llamacpp` measures."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

from backbone.engine.dispatch import ExpertDispatcher
from backbone.engine.engine import Engine, Logits
from backbone.engine.loaded_model import LoadedModel
from backbone.engine.sampling_params import SamplingParams
from backbone.engine.sequence import Sequence as EngineSequence
from backbone.engine.transport import NoWorkers

N_TOKENS = 4
PROMPT = [(7 * column) % 199 + 1 for column in range(19)]


def is_batch_invariant(loaded: LoadedModel, n_slot: int) -> bool:
    """Whether one sequence's logits, all of them, are the same bits alone, in batches of 2, 3, 8 and all slots, and
    with its prompt cut into other chunks."""
    alone = _digests(loaded, [], max_rows=64)
    for n_others, max_rows in ((1, 64), (2, 7), (7, 64), (n_slot - 1, 64), (n_slot - 1, 33)):
        others = [[(13 * row + column) % 211 + 1 for column in range(3 + row % 11)] for row in range(n_others)]
        if _digests(loaded, others, max_rows=max_rows) != alone:
            return False
    return True


def _digests(loaded: LoadedModel, others: Sequence[Sequence[int]], *, max_rows: int) -> list[str]:
    """SHA-256 of each of the first sequence's logits vectors, while `others` run beside it."""
    digests: list[str] = []

    def see(sequence: EngineSequence, logits: Logits) -> None:
        if sequence.request_id == "watched":
            digests.append(hashlib.sha256(logits.tobytes()).hexdigest())

    params = SamplingParams(temperature=0.0, max_tokens=N_TOKENS)
    engine = Engine(loaded.model, ExpertDispatcher(loaded.store, NoWorkers()), max_rows=max_rows, on_logits=see)
    for number, prompt in enumerate(others):
        engine.add(EngineSequence(str(number), prompt, params, loaded.tokenizer))
    engine.add(EngineSequence("watched", PROMPT, params, loaded.tokenizer))
    asyncio.run(_run(engine))
    return digests


async def _run(engine: Engine) -> None:
    while engine.has_work:
        for event in await engine.step():
            if event.error is not None:
                raise event.error
