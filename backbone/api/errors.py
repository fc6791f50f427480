"""Errors of the REST API in OpenAI's form, made from any exception, and Django's error handlers.

All modules of the API raise them, `routes` writes them as replies, `chat.replies` as events of a stream;
`kvasir_site.urls` names the handlers. A message never contains a secret, and of the client's input only field names.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from ninja.errors import HttpError, ValidationError
from redis.exceptions import RedisError

from backbone.stream.client import QueueFull, RedisLost
from backbone.stream.events import Failed
from kvasir.errors import KvasirError, RequestError

logger = logging.getLogger(__name__)

API_PATH = "/v1/"
RETRY_AFTER_S = 5
# OpenAI's fields that are accepted only with a value that has no effect.
UNSUPPORTED = frozenset(
    {
        "audio", "annotations", "best_of", "echo", "function_call", "functions", "include_obfuscation", "modalities",
        "prediction", "reasoning_effort", "refusal", "response_format", "service_tier", "store", "suffix",
        "tool_call_id", "tool_calls", "tool_choice", "tools", "verbosity", "web_search_options",
    }
)  # fmt: skip
_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    499: "cancelled_error",
    503: "unavailable_error",
    504: "timeout_error",
}
_CONTEXT_CODE = "context_length_exceeded"


class ApiError(KvasirError):
    """An HTTP status and OpenAI's four fields; `retry_after_s` becomes the header Retry-After."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> dict[str, object]:
        """Return OpenAI's error object."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> HttpResponse:
        """Return the error as a reply."""
        response = JsonResponse(self.body, status=self.status)
        if self.retry_after_s is not None:
            response["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status == 401:
            response["WWW-Authenticate"] = "Bearer"
        return response


def from_failed(failed: Failed, prompt_field: str) -> ApiError:
    """Return the error for a request's last event. `prompt_field` is the field of the body that held the text."""
    status = failed.status if 400 <= failed.status <= 599 else 500
    param = prompt_field if failed.code == _CONTEXT_CODE else None
    return ApiError(
        status, failed.code, failed.message, param=param, retry_after_s=RETRY_AFTER_S if status == 503 else None
    )


def from_exception(error: BaseException) -> ApiError:
    """Return the error for any exception. An unexpected one is logged and becomes a 500 without details."""
    match error:
        case ApiError():
            found = error
        case QueueFull():
            found = ApiError(503, "queue_full", str(error), retry_after_s=error.retry_after_s)
        case RedisLost() | RedisError():
            found = ApiError(503, "redis_lost", "the message store cannot be reached", retry_after_s=RETRY_AFTER_S)
        case RequestError():
            found = ApiError(400, "invalid_value", str(error))
        case ValidationError():
            found = from_validation(error.errors)
        case HttpError(__cause__=ApiError() as cause):
            found = cause
        case HttpError():
            found = ApiError(error.status_code, "invalid_request", str(error))
        case _:
            logger.error("a request of the API failed", exc_info=error)
            found = ApiError(500, "internal_error", "the server failed to answer this request; see its log")
    return found


def from_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """Return the error that names the first invalid field."""
    field = tuple(errors[0]["loc"][2:]) if errors else ()  # without ninja's "body" and the argument's name
    if not field:
        return ApiError(400, "invalid_value", "the request's body must be a JSON object")
    name, kind = _shown(field), errors[0]["type"]
    if kind == "extra_forbidden":
        return ApiError(400, "unknown_parameter", f"{name} is not a parameter of this API", param=name)
    if kind == "missing":
        return ApiError(400, "missing_parameter", f"{name} is missing", param=name)
    if UNSUPPORTED.intersection(field) and kind != "model_type":
        return ApiError(400, "unsupported_parameter", f"{name} with this value is not supported", param=name)
    return ApiError(400, "invalid_value", f"{name}: {errors[0]['msg']}", param=name)


def _shown(field: Sequence[str | int]) -> str:
    """Return the path as `messages.0.content`, without pydantic's markers for alternatives and keys."""
    return ".".join(str(part)[:80] for part in field if isinstance(part, int) or part[:1] not in {"<", "["})


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - Django passes it by name
    """Answer a request that Django refuses, as for a host that is not allowed."""
    message = "this request is refused; if the host name is right, add it to KVASIR_ALLOWED_HOSTS"
    return _answer(request, ApiError(400, "bad_request", message))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - Django passes it by name
    """Answer a path without a view."""
    return _answer(request, ApiError(404, "unknown_url", "there is nothing at this address"))


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer after an exception outside the API's views; Django has logged it."""
    return _answer(request, ApiError(500, "internal_error", "the server failed; see its log"))


def _answer(request: HttpRequest, error: ApiError) -> HttpResponse:
    """Use the API's form for the API's paths, else a line of text."""
    if request.path_info.startswith(API_PATH):
        return error.response()
    return HttpResponse(f"{error}\n", status=error.status, content_type="text/plain; charset=utf-8")
