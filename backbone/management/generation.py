"""Generation without the service: run prompts, compare two runs, summarise the workers' shares.

The `generate` command and the benchmarks use it. Text goes to a callable; nothing here prints.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from backbone.engine.dispatch.dispatcher import ExpertDispatcher
from backbone.engine.dispatch.hedging import HedgeCounters
from backbone.engine.serving.engine import Engine
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.sequence import Sequence as EngineSequence
from backbone.engine.serving.tally import Tally
from backbone.engine.swarm.reply_format import ReplyFormat
from backbone.engine.swarm.sum_scale import SumScale
from backbone.engine.swarm.transport import Transport
from backbone.engine.trust.guard import WorkGuard
from backbone.sampling_params import SamplingParams
from kvasir.errors import ConfigError

MOST_DEADLINE_S = 3600.0


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """The deadline of workers in seconds, and the format of their replies."""

    deadline_s: float = 10.0
    reply_format: ReplyFormat = ReplyFormat.F32
    sum_scale: SumScale | None = None  # for replies in sums

    def __post_init__(self) -> None:
        """Raise ConfigError for a deadline out of range."""
        if not 0 < self.deadline_s <= MOST_DEADLINE_S:  # refuses NaN too
            raise ConfigError(
                f"deadline is {self.deadline_s:g} s; it must be above 0 and at most {MOST_DEADLINE_S:g} s"
            )


@dataclass(slots=True)
class Generation:
    """The result of a run of one or more prompts. Lists are by prompt."""

    output_ids: list[list[int]]
    logit_digests: list[list[bytes]]  # SHA-256 of the logits that each token was sampled from
    n_prompt_tokens: int
    seconds: float = 0.0
    tally: Tally = field(default_factory=Tally)
    hedges: HedgeCounters = field(default_factory=HedgeCounters)

    @property
    def n_output_tokens(self) -> int:
        """Return the number of generated tokens of all prompts."""
        return sum(len(ids) for ids in self.output_ids)

    @property
    def n_computed_tokens(self) -> int:
        """Return the number of tokens that the model computed: all but the last generated token of each prompt."""
        return self.n_prompt_tokens + self.n_output_tokens - len(self.output_ids)


def generate(
    loaded: LoadedModel,
    transport: Transport,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    settings: DispatchSettings | None = None,
    on_text: Callable[[int, str], None] = lambda number, text: None,
    max_rows: int = 512,
    guard: WorkGuard | None = None,
    strict: Collection[int] = (),
) -> Generation:
    """Run prompts (token ids) together to their ends. `on_text` receives the prompt's index and each new piece of text.

    A `guard` checks workers' answers; prompts with an index in `strict` use confirmed answers only.
    """
    settings = settings or DispatchSettings()
    result = Generation([[] for _ in prompts], [[] for _ in prompts], sum(map(len, prompts)))
    sequences = [
        EngineSequence(str(number), ids, params, loaded.tokenizer, choice=number, is_strict=number in strict)
        for number, ids in enumerate(prompts)
    ]
    experts = ExpertDispatcher(
        loaded.store,
        transport,
        deadline_s=settings.deadline_s,
        reply_format=settings.reply_format,
        sum_scale=settings.sum_scale,
        on_served=result.tally.add,
        guard=guard,
    )

    def keep_digest(sequence: EngineSequence, logits: object) -> None:
        digest = hashlib.sha256(memoryview(logits).cast("B")).digest()  # type: ignore[arg-type]
        result.logit_digests[int(sequence.request_id)].append(digest)

    engine = Engine(loaded.model, experts, max_rows=max_rows, on_logits=keep_digest)
    started = time.perf_counter()
    asyncio.run(_run(engine, sequences, on_text))
    result.seconds = time.perf_counter() - started
    result.hedges = experts.hedges
    result.output_ids = [sequence.output_ids for sequence in sequences]
    return result


async def _run(engine: Engine, sequences: list[EngineSequence], on_text: Callable[[int, str], None]) -> None:
    try:
        for sequence in sequences:
            engine.add(sequence)
        while engine.has_work:
            for event in await engine.step():
                if event.error is not None:
                    raise event.error
                on_text(int(event.sequence.request_id), event.text)
    finally:
        for sequence in sequences:
            engine.cancel(sequence)


def first_difference(one: Generation, other: Generation) -> str | None:
    """Describe the first difference between two runs of the same prompts; None if all tokens and logits are equal."""
    for number, (ids, other_ids) in enumerate(zip(one.output_ids, other.output_ids, strict=True)):
        digests = zip(one.logit_digests[number], other.logit_digests[number], strict=False)
        for position, (digest, other_digest) in enumerate(digests):
            if digest != other_digest:
                return (
                    f"prompt {number}: the logits of output token {position} differ "
                    f"(sampled {ids[position]} and {other_ids[position]})"
                )
        if ids != other_ids:
            return f"prompt {number}: {len(ids)} and {len(other_ids)} output tokens"
    return None


def summary_lines(run: Generation, bytes_moved: dict[str, tuple[int, int]]) -> list[str]:
    """Return lines about a run: speed, the experts' sources, bytes over the network."""
    tally = run.tally
    lines = [
        f"{run.n_output_tokens} tokens in {run.seconds:.2f} s ({run.n_output_tokens / run.seconds:.1f} tokens/s), "
        f"prompt of {run.n_prompt_tokens} tokens",
    ]
    shares = [f"{name} {tally.share(tally.pairs_by_worker[name]):.1%}" for name in sorted(bytes_moved)]
    lines.append(
        "row-experts by " + ", ".join([*shares, f"backbone's own replica {tally.share(tally.n_fallback):.1%}"])
    )
    lines += [
        f"  {n_pairs} of them: {reason}" for reason, n_pairs in tally.fallback_by_reason.most_common() if bytes_moved
    ]
    if bytes_moved:
        sent = sum(moved[0] for moved in bytes_moved.values()) / run.n_computed_tokens
        received = sum(moved[1] for moved in bytes_moved.values()) / run.n_computed_tokens
        lines.append(f"per computed token: {sent / 1000:.1f} kB sent to workers, {received / 1000:.1f} kB received")
    return lines
