"""The OpenAI-compatible REST API: routes and nothing else. `kvasir_site.urls` mounts it at /v1/.

A view checks, asks `chat.generation` and hands on; what is typed is in `chat.schemas`, errors in `api.errors`.
"""

from __future__ import annotations

from typing import NoReturn, TypeVar

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError

from backbone.api.chat.generation import Generation
from backbone.api.chat.replies import whole_reply
from backbone.api.chat.reply_schemas import (
    ChatReply,
    CompletionReply,
    ErrorReply,
    GuestKeyReply,
    ModelList,
    ModelReply,
    RequestReply,
    TraceReply,
)
from backbone.api.chat.requests import Asked, RequestMaker
from backbone.api.chat.schemas import ChatBody, CompletionBody
from backbone.api.chat.streaming import EventStream, StreamWriter, first_events, stream_parts
from backbone.api.errors import ApiError, from_exception
from backbone.api.keys.auth import ApiKeyAuth, asking_key
from backbone.api.keys.guests import check_guest, guest_key
from backbone.api.keys.store import KeyScope
from backbone.api.parser import StrictParser
from backbone.api.settings import ApiSettings
from backbone.api.swarm.metrics import METRICS, Measurement
from backbone.api.swarm.records import record_reply
from backbone.api.swarm.traces import trace_reply
from backbone.api.swarm.world import swarm
from backbone.stream.directory import ModelEntry

_MARGIN_S = 30.0  # a reader waits so much longer than queue and engine may take together
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
Reply = TypeVar("Reply", bound=HttpResponseBase)
_ERRORS = {400, 401, 403, 404, 411, 413, 429, 500, 502, 503, 504}

api = NinjaAPI(
    title="Kvasir",
    version="1",
    description="An OpenAI-compatible API of a model whose experts are computed by a swarm. See docs/use/api.md.",
    urls_namespace="api",
    docs_url=None,  # api_docs serves the page: from package files, under a strict policy
    openapi_url="/openapi.json",
    auth=ApiKeyAuth(KeyScope.GENERATE),
    parser=StrictParser(),
)


@api.get("/models", response={200: ModelList, frozenset(_ERRORS): ErrorReply}, summary="Models that are served now")
async def models(request: HttpRequest) -> HttpResponse:
    """All models of the backbones that live."""
    entries = [_model(entry) for entry in await swarm().models()]
    return _counted(request, JsonResponse({"object": "list", "data": entries}))


@api.get("/models/{path:model_id}", response={200: ModelReply, frozenset(_ERRORS): ErrorReply}, summary="One model")
async def model(request: HttpRequest, model_id: str) -> HttpResponse:
    """One model by its name."""
    return _counted(request, JsonResponse(_model(await _served(model_id))))


@api.post(
    "/completions", response={200: CompletionReply, frozenset(_ERRORS): ErrorReply}, summary="Go on from a prompt"
)
async def completions(request: HttpRequest, body: CompletionBody) -> HttpResponseBase:
    """One or several prompts, `n` choices for each. With `stream.client`: server-sent events."""
    return await _answer(request, _maker(request).completion(body))


@api.post("/chat/completions", response={200: ChatReply, frozenset(_ERRORS): ErrorReply}, summary="Answer to messages")
async def chat_completions(request: HttpRequest, body: ChatBody) -> HttpResponseBase:
    """Messages, put into a prompt by the model's own chat template. With `stream.client`: server-sent events."""
    return await _answer(request, _maker(request).chat(body))


@api.get(
    "/requests/{request_id}",
    response={200: RequestReply, frozenset(_ERRORS): ErrorReply},
    summary="The record of a request that has ended",
)
async def request_record(request: HttpRequest, request_id: str) -> HttpResponse:
    """With the key that sent the request. A lie that is found later is added to it."""
    reply = await record_reply(request_id, asking_key(request).public_id)
    return _counted(request, JsonResponse(reply))


@api.get(
    "/requests/{request_id}/trace",
    response={200: TraceReply, frozenset(_ERRORS): ErrorReply},
    summary="Where the last tokens of a request were computed",
)
async def request_trace(request: HttpRequest, request_id: str) -> HttpResponse:
    """With the key that sent the request, within an hour of its end."""
    reply = await trace_reply(request_id, asking_key(request).public_id)
    return _counted(request, JsonResponse(reply))


@api.post(
    "/playground/key",
    auth=None,
    response={200: GuestKeyReply, frozenset(_ERRORS): ErrorReply},
    summary="A visitor's key, which soon ends",
)
async def playground_key(request: HttpRequest) -> HttpResponse:
    """Without a key. Each address gets few, and may ask little with all of them together."""
    return _counted(request, JsonResponse(await guest_key(request)))


def _refuse_other_methods(path: str, allowed: str) -> None:
    """Answer every other method on this path in the API's own shape."""

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
    """Paths that are not ours."""
    raise ApiError(404, "unknown_url", f"there is no {request.method} /v1/{rest[:200]} in this API")


def on_exception(request: HttpRequest, error: Exception | type[Exception]) -> HttpResponse:
    """Every exception of a view as an error in OpenAI's shape."""
    return _counted(request, from_exception(error if isinstance(error, Exception) else error()).response())


for _kind in (Exception, HttpError, ValidationError, Http404):
    api.add_exception_handler(_kind, on_exception)


def _maker(request: HttpRequest) -> RequestMaker:
    return RequestMaker(ApiSettings.from_django().deadline_s, asking_key(request).public_id)


async def _answer(request: HttpRequest, asked: Asked) -> HttpResponseBase:
    """Queue what was asked and give the reply, whole or as a stream. Raises ApiError."""
    check_guest(asking_key(request), asked)
    await _served(asked.model)
    limits = ApiSettings.from_django()
    generation = Generation(
        swarm(),
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
    except BaseException:  # a client that went away is a CancelledError
        generation.close()
        raise
    reply["X-Request-Id"] = asked.reply_id
    return _counted(request, reply)


async def _served(name: str) -> ModelEntry:
    """The model of this name. Raises ApiError when it, or every model, is missing."""
    entries = await swarm().models()
    for entry in entries:
        if entry.name == name:
            return entry
    if not entries:
        raise ApiError(503, "no_backbone", "no backbone is running", retry_after_s=5)
    known = ", ".join(entry.name for entry in entries[:10])
    raise ApiError(404, "model_not_found", f"the model {name[:200]!r} is not served; there is {known}", param="model")


def _model(entry: ModelEntry) -> dict[str, object]:
    own = {
        "n_ctx": entry.n_ctx,
        "architecture": entry.architecture,
        "system_fingerprint": entry.fingerprint,
        "chat": entry.has_chat,
    }
    return {"id": entry.name, "object": "model", "created": entry.created, "owned_by": "kvasir", "kvasir": own}


def _endpoint(request: HttpRequest) -> str:
    """A name for the counters; there are few, whatever paths are asked for."""
    name = request.path_info.removeprefix("/v1/").split("/")[0]
    return name if name in {"completions", "chat", "models", "playground", "requests"} else "other"


def _counted(request: HttpRequest, response: Reply) -> Reply:
    METRICS.requests.labels(_endpoint(request), str(response.status_code)).inc()
    return response
