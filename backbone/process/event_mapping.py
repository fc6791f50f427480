"""The engine's events and failures in the API's words, for the stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from backbone.engine.drafts.drafter import DraftCounts
from backbone.engine.serving.jobs import (
    Began,
    Broken,
    ChoiceEnded,
    Completed,
    ContextOverflow,
    FailureKind,
    JobEvent,
    NewToken,
    Waiting,
)
from backbone.engine.serving.service import ServiceClosed
from backbone.engine.serving.shares import Shares
from backbone.engine.text.tokenizer import Tokenizer
from backbone.engine.trust.exposure import ExposureBook
from backbone.process.trust_keeper import is_node
from backbone.stream.events import Done, End, Event, Failed, Queued, Started, SwarmShare, Token, TopLogprob, Usage
from kvasir.errors import KvasirError, RequestError

_STATUS: Mapping[FailureKind, tuple[int, str]] = {
    FailureKind.QUEUE_FULL: (503, "queue_full"),
    FailureKind.DEADLINE: (504, "deadline_exceeded"),
    FailureKind.CANCELLED: (499, "cancelled"),
    FailureKind.STEP_FAILED: (500, "engine_error"),
    FailureKind.STOPPING: (503, "backbone_stopping"),
    FailureKind.ENGINE_LOST: (502, "backbone_lost"),
    FailureKind.STORE_LOST: (503, "redis_lost"),
}


MAX_NAMED = 64  # workers in a list that a client is shown
OPERATORS = "operator"  # stands for all workers at an address: it is nobody's business


class ModelNotFound(RequestError):
    """The request names a model that this backbone does not serve."""


def refusal(error: KvasirError) -> Failed:
    """Why a request was not even started."""
    if isinstance(error, ModelNotFound):
        return Failed(404, "model_not_found", str(error))
    if isinstance(error, ContextOverflow):
        return Failed(400, "context_length_exceeded", str(error))
    if isinstance(error, RequestError):
        return Failed(400, "invalid_request", str(error))
    if isinstance(error, ServiceClosed):
        return Failed(503, "backbone_stopping", str(error))
    return Failed(500, "engine_error", str(error))


@dataclass(frozen=True, slots=True, eq=False)
class EventMapper:
    """Puts what only the process knows into events: who it is, tokens' bytes, whose answers nobody confirmed."""

    backbone_id: str
    model_name: str
    fingerprint: str
    tokenizer: Tokenizer
    exposures: ExposureBook = field(default_factory=ExposureBook)

    def event(self, request_id: str, event: JobEvent) -> Event:
        """The stream's event for one of the engine's."""
        match event:
            case NewToken():
                return self._token(event)
            case Waiting(position):
                return Queued(position)
            case Began(n_prompt_tokens):
                return Started(n_prompt_tokens, self.model_name, self.fingerprint, self.backbone_id)
            case ChoiceEnded(choice, finish_reason, n_tokens):
                return End(choice, finish_reason.value, n_tokens)
            case Completed(n_prompt_tokens, n_completion_tokens, shares, _, drafts):
                return Done(Usage(n_prompt_tokens, n_completion_tokens), self._share(request_id, shares, drafts))
            case Broken(failure, _):
                return Failed(*_STATUS[failure.kind], failure.message)

    def _share(self, request_id: str, shares: Shares, drafts: DraftCounts) -> SwarmShare:
        flags = self.exposures.flags_of(request_id)
        return replace(
            swarm_share(shares),
            flagged=bool(flags),
            flagged_workers=shown_workers(flags.values()),
            unconfirmed=shown_workers(self.exposures.unconfirmed_workers(request_id)),
            n_drafted=drafts.drafted,
            n_accepted=drafts.accepted,
        )

    def _token(self, event: NewToken) -> Token:
        sampled = event.sampled
        if sampled.logprob is None:
            return Token(event.choice, sampled.token, event.text)
        tops = tuple(TopLogprob(top.token, self._bytes(top.token), top.logprob) for top in sampled.top_logprobs)
        return Token(event.choice, sampled.token, event.text, self._bytes(sampled.token), sampled.logprob, tops)

    def _bytes(self, token: int) -> bytes:
        """A model may have more outputs than its vocabulary has tokens: those stand for nothing."""
        return self.tokenizer.token_bytes(token) if token < self.tokenizer.n_vocab else b""


def shown_workers(worker_ids: Iterable[str]) -> tuple[str, ...]:
    """Workers as a client may see them: nodes by their public ids, the first MAX_NAMED."""
    return tuple(sorted({shown_worker(worker_id) for worker_id in worker_ids})[:MAX_NAMED])


def shown_worker(worker_id: str) -> str:
    """A node's public id; no address of the operator's own network."""
    return worker_id if is_node(worker_id) else OPERATORS


def swarm_share(shares: Shares) -> SwarmShare:
    """Counts as shares of the whole."""
    total = shares.total or 1
    return SwarmShare(shares.total, shares.workers / total, shares.hot / total, shares.fallback / total)
