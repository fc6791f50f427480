"""The engine's events, failures and traces as events and traces of the API.

`backbone_process` and `record_keeper` call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

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
from backbone.engine.serving.token_sources import Source, TokenTrace, count_sources
from backbone.engine.text.tokenizer import Tokenizer
from backbone.engine.trust.exposure import ExposureBook
from backbone.process.trust_keeper import is_node
from backbone.stream.directory import ModelEntry
from backbone.stream.events import Done, End, Event, Failed, Queued, Started, SwarmShare, Token, TopLogprob, Usage
from backbone.stream.request_trace import COUNT_TYPE, FALLBACK, HOT, MOST_COUNTED, WORKER, RequestTrace, TraceSource
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
MAX_NAMED = 64  # workers in a list for clients
OPERATORS = "operator"  # stands for all workers at an address, which clients must not see


class ModelNotFound(RequestError):
    """The request names a model that this backbone does not serve."""


def refusal(error: KvasirError) -> Failed:
    """Return the event for a request that was refused before its start."""
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
    """Adds to events what only the process knows: its id, its model, tokens' bytes, unconfirmed workers."""

    backbone_id: str
    model: ModelEntry
    tokenizer: Tokenizer
    exposures: ExposureBook = field(default_factory=ExposureBook)

    def event(self, request_id: str, event: JobEvent) -> Event:
        """Return the stream's event for an event of the engine."""
        match event:
            case NewToken():
                return self._token(event)
            case Waiting(position):
                return Queued(position)
            case Began(n_prompt_tokens):
                return Started(n_prompt_tokens, self.model.name, self.model.fingerprint, self.backbone_id)
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
        """Return a token's bytes; none for outputs of the model beyond its vocabulary."""
        return self.tokenizer.token_bytes(token) if token < self.tokenizer.n_vocab else b""


def shown_workers(worker_ids: Iterable[str]) -> tuple[str, ...]:
    """Return the first MAX_NAMED workers by the names that clients may see, sorted."""
    return tuple(sorted({shown_worker(worker_id) for worker_id in worker_ids})[:MAX_NAMED])


def shown_worker(worker_id: str) -> str:
    """Return a node's public id, or OPERATORS for a worker at an address."""
    return worker_id if is_node(worker_id) else OPERATORS


def swarm_share(shares: Shares) -> SwarmShare:
    """Return the counts as shares of their sum."""
    total = shares.total or 1
    return SwarmShare(shares.total, shares.workers / total, shares.hot / total, shares.fallback / total)


def request_trace(trace: TokenTrace, name_of: Callable[[str], str]) -> RequestTrace:
    """Return the counts of a trace with at least one token. Workers come first, sorted by the names of `name_of`."""
    counted = count_sources(trace)
    layers = sorted({source.layer for source in counted.sources})
    shown = [_shown(source, name_of) for source in counted.sources]
    nodes = sorted(set(shown), key=lambda source: (source.kind != WORKER, source.worker or ""))
    cells = [
        layers.index(source.layer) * len(nodes) + nodes.index(node)
        for source, node in zip(counted.sources, shown, strict=True)
    ]
    by_cell = np.zeros((len(trace.tokens), len(layers) * len(nodes)), np.int64)
    # Added, not set: several workers of the operator have one column.
    np.add.at(by_cell.T, np.array(cells), counted.counts.T)
    counts = np.minimum(by_cell, MOST_COUNTED).astype(COUNT_TYPE).tobytes()
    return RequestTrace(trace.first_token, tuple(layers), tuple(nodes), counts)


def _shown(source: Source, name_of: Callable[[str], str]) -> TraceSource:
    if source.worker_id is not None:
        return TraceSource(WORKER, name_of(source.worker_id))
    return TraceSource(HOT if source.is_hot else FALLBACK)
