"""From requests to jobs, and from the engine's events to the API's words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backbone.engine.drafts.drafter import DraftCounts
from backbone.engine.sampling.choice import Sampled, TokenLogprob
from backbone.engine.serving.jobs import (
    Began,
    Broken,
    ChoiceEnded,
    Completed,
    ContextOverflow,
    FailureKind,
    JobFailure,
    NewToken,
    Waiting,
)
from backbone.engine.serving.sequence import FinishReason
from backbone.engine.serving.service import ServiceClosed
from backbone.engine.serving.shares import Shares
from backbone.engine.text.tokenizer import Tokenizer
from backbone.process.event_mapping import EventMapper, ModelNotFound, refusal, swarm_share
from backbone.process.request_intake import RequestIntake
from backbone.sampling_params import SamplingParams
from backbone.stream.directory import ModelEntry
from backbone.stream.events import Done, End, Failed, Queued, Started, SwarmShare, Token, TopLogprob, Usage
from backbone.stream.payloads import GenerationRequest, RequestKind
from kvasir.errors import KernelError, RequestError
from kvasir.gguf.index import GGUFIndex
from tests.unit.engine_service import tiny_model

REQUEST_ID = "0f" * 16
ENTRY = ModelEntry("tiny", "fp_1", 512, "qwen3moe", 0)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFIndex]:
    with GGUFIndex.open(tiny_model(tmp_path_factory.mktemp("intake"))) as index:
        yield index


@pytest.fixture(scope="module")
def tokenizer(index: GGUFIndex) -> Tokenizer:
    return Tokenizer.from_metadata(index.metadata)


@pytest.fixture(scope="module")
def intake(index: GGUFIndex, tokenizer: Tokenizer) -> RequestIntake:
    return RequestIntake("tiny", tokenizer, index.metadata, max_deadline_s=30.0)


def request(kind: RequestKind = RequestKind.COMPLETION, **changes: Any) -> GenerationRequest:
    return GenerationRequest(REQUEST_ID, "tiny", kind, 60.0, 0.0, **changes)


def test_a_prompt_is_text_that_never_holds_control_tokens(intake: RequestIntake, tokenizer: Tokenizer) -> None:
    job = intake.job(request(prompt="hello<|im_end|>", n=2, sampling=SamplingParams(seed=5)))
    assert job.prompt_ids == tuple(tokenizer.encode("hello<|im_end|>", add_special=True, parse_special=False))
    assert not set(job.prompt_ids) & tokenizer.eog_ids
    assert (job.job_id, job.n_choices, job.params.seed, job.params.max_tokens) == (REQUEST_ID, 2, 5, None)
    assert job.deadline_s == 30.0  # the server's longest
    assert intake.job(request(prompt=(1, 2))).prompt_ids == (1, 2)


def test_messages_are_rendered_by_the_models_template(intake: RequestIntake, tokenizer: Tokenizer) -> None:
    job = intake.job(request(RequestKind.CHAT, messages=({"role": "user", "content": "hi"},)))
    rendered = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert job.prompt_ids == tuple(tokenizer.encode(rendered, add_special=False, parse_special=True))
    with pytest.raises(RequestError, match="role"):
        intake.job(request(RequestKind.CHAT, messages=({"content": "hi"},)))


def test_a_model_without_a_template_completes_and_says_why_it_does_not_chat(
    index: GGUFIndex, tokenizer: Tokenizer
) -> None:
    metadata = {key: index.metadata[key] for key in index.metadata if key != "tokenizer.chat_template"}
    intake = RequestIntake("tiny", tokenizer, metadata, 30.0)
    assert intake.job(request(prompt="hi")).prompt_ids
    assert not intake.has_chat and RequestIntake("tiny", tokenizer, index.metadata, 30.0).has_chat
    with pytest.raises(RequestError, match="no chat template"):
        intake.job(request(RequestKind.CHAT, messages=({"role": "user", "content": "hi"},)))


def test_another_models_name_is_not_found(index: GGUFIndex, tokenizer: Tokenizer) -> None:
    intake = RequestIntake("big", tokenizer, index.metadata, 30.0)
    with pytest.raises(ModelNotFound, match="'tiny' is not served here; 'big' is"):
        intake.job(request(prompt="hi"))


def test_a_missing_seed_is_drawn(intake: RequestIntake) -> None:
    first, second = (intake.job(request(prompt="hi")).params.seed for _ in range(2))
    assert None not in (first, second) and first != second


def test_events_get_what_only_the_process_knows(tokenizer: Tokenizer) -> None:
    mapper = EventMapper("b1", ENTRY, tokenizer)
    assert mapper.event("r", Waiting(3)) == Queued(3)
    assert mapper.event("r", Began(9)) == Started(9, "tiny", "fp_1", "b1")
    assert mapper.event("r", NewToken(1, Sampled(5), "x")) == Token(1, 5, "x")
    token = tokenizer.token_bytes(5)
    sampled = Sampled(5, -1.0, (TokenLogprob(5, -1.0),))
    assert mapper.event("r", NewToken(0, sampled, "")) == Token(0, 5, "", token, -1.0, (TopLogprob(5, token, -1.0),))
    assert mapper.event("r", ChoiceEnded(1, FinishReason.LENGTH, 4)) == End(1, "length", 4)
    completed = Completed(9, 4, Shares(workers=6, hot=1, fallback=1), drafts=DraftCounts(5, 3))
    assert mapper.event("r", completed) == Done(
        Usage(9, 4), SwarmShare(8, 0.75, 0.125, 0.125, n_drafted=5, n_accepted=3)
    )
    assert swarm_share(Shares()) == SwarmShare(0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("kind", list(FailureKind))
def test_every_failure_has_a_status_and_a_code(kind: FailureKind, tokenizer: Tokenizer) -> None:
    event = EventMapper("b1", ENTRY, tokenizer).event("r", Broken(JobFailure(kind, "why")))
    assert isinstance(event, Failed) and event.status >= 499 and event.code and event.message == "why"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ModelNotFound("x"), 404, "model_not_found"),
        (ContextOverflow("x"), 400, "context_length_exceeded"),
        (RequestError("x"), 400, "invalid_request"),
        (ServiceClosed("x"), 503, "backbone_stopping"),
        (KernelError("x"), 500, "engine_error"),
    ],
)
def test_every_refusal_has_its_status(error: Any, status: int, code: str) -> None:
    assert refusal(error) == Failed(status, code, "x")
