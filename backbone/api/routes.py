"""The routes of the OpenAI-compatible REST API, which `kvasir_site.urls` mounts at /v1/, and its JSON parser.

ninja checks the key (`keys.auth`) and the body (`chat.schemas`) before a view runs; every exception becomes an error of
`errors`.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, TypeVar

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError
from ninja.parser import Parser

from backbone.api.chat.generation import Generation
from backbone.api.chat.replies import EventStream, StreamWriter, first_events, stream_parts, whole_reply
from backbone.api.chat.requests import Asked, RequestMaker
from backbone.api.chat.schemas import ChatBody, ChatReply, CompletionBody, CompletionReply
from backbone.api.errors import ApiError, from_exception
from backbone.api.keys.auth import ApiKeyAuth, asking_key, check_guest, guest_key
from backbone.api.keys.store import KeyScope
from backbone.api.message_store import message_store
from backbone.api.schemas import ErrorReply, GuestKeyReply, ModelList, ModelReply, RequestReply, StrictModel, TraceReply
from backbone.api.service.metrics import METRICS, Measurement
from backbone.api.service.records import record_reply, trace_reply
from backbone.api.settings import ApiSettings
from backbone.stream.directory import ModelEntry

_MARGIN_S = 30.0  # a reader waits this much longer than queue and engine may take together
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
Reply = TypeVar("Reply", bound=HttpResponseBase)
_ERRORS = frozenset({400, 401, 403, 404, 411, 413, 429, 500, 502, 503, 504})
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class StrictParser(Parser):
    """Refuses what Python's JSON reader accepts: NaN, infinity, a name twice, half of a surrogate pair."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        """Return the body's JSON, of any type. Raises ApiError."""
        try:
            body: dict[str, Any] = json.loads(request.body, parse_constant=_refuse, object_pairs_hook=_unique)
            if _SURROGATE.search(request.body):
                json.dumps(body, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise ApiError(400, "invalid_json", f"the body is not valid JSON: {str(error)[:200]}") from error
        return body


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"an object has the name {twice[:80]!r} twice")
    return values


def _replies(kind: type[StrictModel]) -> dict[Any, type[StrictModel]]:
    return {200: kind, _ERRORS: ErrorReply}


api = NinjaAPI(
    title="Kvasir",
    version="1",
    description="An OpenAI-compatible API of a model whose experts are computed by a swarm. See docs/use/api.md.",
    urls_namespace="api",
    docs_url=None,  # `docs` serves the page under a strict content policy
    openapi_url="/openapi.json",
    auth=ApiKeyAuth(KeyScope.GENERATE),
    parser=StrictParser(),
)


@api.get("/models", response=_replies(ModelList), summary="Models that are served now")
async def models(request: HttpRequest) -> HttpResponse:
    """List the models of all running backbones."""
    entries = [_model(entry) for entry in await message_store().models()]
    return _counted(request, JsonResponse({"object": "list", "data": entries}))


@api.get("/models/{path:model_id}", response=_replies(ModelReply), summary="One model")
async def model(request: HttpRequest, model_id: str) -> HttpResponse:
    """Return one model by its name."""
    return _counted(request, JsonResponse(_model(await _served(model_id))))


@api.post("/completions", response=_replies(CompletionReply), summary="Complete a prompt")
async def completions(request: HttpRequest, body: CompletionBody) -> HttpResponseBase:
    """Complete one or several prompts, with `n` choices for each. With `stream`: server-sent events."""
    return await _answer(request, _maker(request).completion(body))


@api.post("/chat/completions", response=_replies(ChatReply), summary="Answer messages")
async def chat_completions(request: HttpRequest, body: ChatBody) -> HttpResponseBase:
    """Answer messages by the model's own chat template. With `stream`: server-sent events."""
    return await _answer(request, _maker(request).chat(body))


@api.get("/requests/{request_id}", response=_replies(RequestReply), summary="The record of a request that has ended")
async def request_record(request: HttpRequest, request_id: str) -> HttpResponse:
    """Return the record to the key that sent the request. Lies that are proven later are added to it."""
    reply = await record_reply(request_id, asking_key(request).public_id)
    return _counted(request, JsonResponse(reply))


@api.get("/requests/{request_id}/trace", response=_replies(TraceReply), summary="Where a request was computed")
async def request_trace(request: HttpRequest, request_id: str) -> HttpResponse:
    """Return where the last tokens were computed, to the key that sent the request, for an hour after its end."""
    reply = await trace_reply(request_id, asking_key(request).public_id)
    return _counted(request, JsonResponse(reply))


@api.post("/playground/key", auth=None, response=_replies(GuestKeyReply), summary="A guest's key")
async def playground_key(request: HttpRequest) -> HttpResponse:
    """Issue a guest's key without authentication. All guests of an address share its low limits."""
    return _counted(request, JsonResponse(await guest_key(request)))


def _refuse_other_methods(path: str, allowed: str) -> None:
    """Answer all other methods on this path with an error in the API's form."""

    async def not_allowed(request: HttpRequest) -> HttpResponse:
        response = ApiError(
            405, "method_not_allowed", f"{request.method} is not allowed here: use {allowed}"
        ).response()
        response["Allow"] = allowed
        return _counted(request, response)

    others = [method for method in _METHODS if method != allowed]
    api.api_operation(others, path, auth=None, include_in_schema=False, operation_id=f"other{path}")(not_allowed)


for _path, _allowed in (
    ("/completions", "POST"),
    ("/chat/completions", "POST"),
    ("/models", "GET"),
    ("/playground/key", "POST"),
):
    _refuse_other_methods(_path, _allowed)


@api.api_operation(list(_METHODS), "/{path:rest}", auth=None, include_in_schema=False)
async def nothing_here(request: HttpRequest, rest: str) -> NoReturn:
    """Refuse unknown paths."""
    raise ApiError(404, "unknown_url", f"there is no {request.method} /v1/{rest[:200]} in this API")


def on_exception(request: HttpRequest, error: Exception | type[Exception]) -> HttpResponse:
    """Answer any exception of a view with an error in OpenAI's form."""
    return _counted(request, from_exception(error if isinstance(error, Exception) else error()).response())


for _kind in (Exception, HttpError, ValidationError, Http404):
    api.add_exception_handler(_kind, on_exception)


def _maker(request: HttpRequest) -> RequestMaker:
    return RequestMaker(ApiSettings.from_django().deadline_s, asking_key(request).public_id)


async def _answer(request: HttpRequest, asked: Asked) -> HttpResponseBase:
    """Queue the requests and return the reply, whole or as a stream. Raises ApiError."""
    check_guest(asking_key(request), asked)
    await _served(asked.model)
    limits = ApiSettings.from_django()
    generation = Generation(
        message_store(),
        asked.requests,
        patience_s=limits.queue_wait_s + limits.deadline_s + _MARGIN_S,
        measure=Measurement(METRICS, _endpoint(request)),
    )
    try:
        await generation.start()
        if asked.stream:
            first = await first_events(generation, asked)
            stream = EventStream(stream_parts(generation, StreamWriter(asked), first), generation)
            stream["X-Request-Id"] = asked.reply_id
            return _counted(request, stream)
        reply = JsonResponse(await whole_reply(generation, asked))
    except BaseException:  # a disconnected client is a CancelledError
        generation.close()
        raise
    reply["X-Request-Id"] = asked.reply_id
    return _counted(request, reply)


async def _served(name: str) -> ModelEntry:
    """Return the model of this name. Raises ApiError if it is not served, or no model is."""
    entries = await message_store().models()
    for entry in entries:
        if entry.name == name:
            return entry
    if not entries:
        raise ApiError(503, "no_backbone", "no backbone is running", retry_after_s=5)
    known = ", ".join(entry.name for entry in entries[:10])
    raise ApiError(
        404, "model_not_found", f"the model {name[:200]!r} is not served; available are {known}", param="model"
    )


def _model(entry: ModelEntry) -> dict[str, object]:
    own = {
        "n_ctx": entry.n_ctx,
        "architecture": entry.architecture,
        "system_fingerprint": entry.fingerprint,
        "chat": entry.has_chat,
    }
    return {"id": entry.name, "object": "model", "created": entry.created, "owned_by": "kvasir", "kvasir": own}


def _endpoint(request: HttpRequest) -> str:
    """Return the name for the counters, one of a few for any path."""
    name = request.path_info.removeprefix("/v1/").split("/")[0]
    return name if name in {"completions", "chat", "models", "playground", "requests"} else "other"


def _counted(request: HttpRequest, response: Reply) -> Reply:
    METRICS.requests.labels(_endpoint(request), str(response.status_code)).inc()
    return response
