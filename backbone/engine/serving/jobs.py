"""A request inside the engine service: what was asked, how far its choices are, and the events that it makes.

`service` takes specs and reports events; `service_core` keeps jobs. A job is one or more sequences over one prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from backbone.engine.drafts.drafter import DraftCounts
from backbone.engine.sampling.choice import Sampled
from backbone.engine.serving.sequence import FinishReason, Sequence
from backbone.engine.serving.shares import Shares
from backbone.engine.serving.token_sources import LastTokens, TokenTrace
from backbone.engine.text.tokenizer import Tokenizer
from backbone.sampling_params import SamplingParams
from kvasir.errors import RequestError

N_TRACED = 64  # tokens of an answer whose sources are kept
NO_TRACE = TokenTrace()


class ContextOverflow(RequestError):
    """Prompt and answer do not fit into a slot; the message has both numbers."""


class FailureKind(StrEnum):
    """Why a job ended without all its choices."""

    QUEUE_FULL = "queue_full"
    DEADLINE = "deadline_exceeded"
    CANCELLED = "cancelled"
    STEP_FAILED = "step_failed"
    STOPPING = "stopping"
    ENGINE_LOST = "engine_lost"
    STORE_LOST = "store_lost"  # its tokens could not be delivered


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Kind, and what a person should read."""

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What to generate: `n_choices` answers to one prompt. `deadline_s` counts from the submission."""

    job_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    deadline_s: float
    n_choices: int = 1
    is_strict: bool = False  # every worker's answer is confirmed before it is used


class Waiting(NamedTuple):
    """The job waits for a slot; position 1 is next."""

    position: int


class Began(NamedTuple):
    """The first choice has a slot."""

    n_prompt_tokens: int


class NewToken(NamedTuple):
    """One token of a choice, and the text that may be shown now."""

    choice: int
    sampled: Sampled
    text: str


class ChoiceEnded(NamedTuple):
    """A choice is complete."""

    choice: int
    finish_reason: FinishReason
    n_tokens: int


class Completed(NamedTuple):
    """All choices are complete."""

    n_prompt_tokens: int
    n_completion_tokens: int
    shares: Shares
    trace: TokenTrace = NO_TRACE
    drafts: DraftCounts = DraftCounts()


class Broken(NamedTuple):
    """The job ended early."""

    failure: JobFailure
    trace: TokenTrace = NO_TRACE


JobEvent: TypeAlias = "Waiting | Began | NewToken | ChoiceEnded | Completed | Broken"
JobEvents: TypeAlias = "list[tuple[str, JobEvent]]"  # with the job's id, in order


class Job:
    """One job's state. Only the service's loop changes it."""

    def __init__(
        self,
        spec: JobSpec,
        tokenizer: Tokenizer,
        deadline_at: float,
        *,
        n_traced_tokens: int = N_TRACED,
        max_drafts: int = 0,
    ) -> None:
        """Makes the sequences, which reads the whole prompt: call it outside the loop.

        `n_traced_tokens`: of how many of its first choice's tokens the sources are kept, the last ones. `max_drafts`
        bounds the tokens of a draft; 0 drafts nothing.
        """
        self.spec = spec
        self.deadline_at = deadline_at
        self.position = 0  # as last reported; 0 when never
        self.has_begun = False
        self.n_ended = 0
        self.n_completion_tokens = 0
        self.shares = Shares()
        self.drafts = DraftCounts()
        self.last_tokens = LastTokens(n_traced_tokens)
        self.running: dict[Sequence, int] = {}  # with the number of its group
        self.pending = deque(
            Sequence(
                spec.job_id,
                spec.prompt_ids,
                spec.params,
                tokenizer,
                choice=choice,
                is_strict=spec.is_strict,
                max_drafts=max_drafts,
            )
            for choice in range(spec.n_choices)
        )

    @property
    def is_complete(self) -> bool:
        """Whether all choices have ended."""
        return self.n_ended == self.spec.n_choices


def check_fits(prompt_ids: Tokens[int], params: SamplingParams, *, n_ctx: int, n_vocab: int) -> None:
    """Raise RequestError for what no wait would make possible.

    ContextOverflow when the prompt, or prompt and max_tokens together, are more than a slot's `n_ctx` tokens.
    """
    n_prompt = len(prompt_ids)
    if n_prompt == 0:
        raise RequestError("the prompt is empty: give at least one token")
    if n_prompt >= n_ctx:
        raise ContextOverflow(f"the prompt has {n_prompt} tokens and the context holds {n_ctx}, answer included")
    if params.max_tokens is not None and n_prompt + params.max_tokens > n_ctx:
        total = n_prompt + params.max_tokens
        raise ContextOverflow(
            f"the request needs {total} tokens ({n_prompt} of the prompt and max_tokens {params.max_tokens}) "
            f"and the context holds {n_ctx}"
        )
    lowest, highest = min(prompt_ids), max(prompt_ids)
    if lowest < 0 or highest >= n_vocab:
        wrong = lowest if lowest < 0 else highest
        raise RequestError(f"the prompt has the token id {wrong}; this model's ids go from 0 to {n_vocab - 1}")
    params.check_vocabulary(n_vocab)
