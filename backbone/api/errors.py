"""Errors of the REST API in OpenAI's shape, and the way from every exception to one.

Raised by all `api_*` modules, turned into replies by `api`, into events by `chat.streaming`. Messages never hold a
secret, nor what a client sent beyond a field's name.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from django.http import HttpResponse, JsonResponse
from ninja.errors import HttpError, ValidationError
from redis.exceptions import RedisError

from backbone.api.chat.schemas import LEFT_OUT
from backbone.stream.client import QueueFull, RedisLost
from backbone.stream.events import Failed
from kvasir.errors import KvasirError, RequestError

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 5
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
    """What a client is told: a status and OpenAI's four fields; `retry_after_s` becomes the header."""

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
        """OpenAI's error object."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> HttpResponse:
        """As a reply."""
        response = JsonResponse(self.body, status=self.status)
        if self.retry_after_s is not None:
            response["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status == 401:
            response["WWW-Authenticate"] = "Bearer"
        return response


def from_failed(failed: Failed, prompt_field: str) -> ApiError:
    """What the backbone, or the reader of its stream, reported. `prompt_field`: where the request's text was."""
    status = failed.status if 400 <= failed.status <= 599 else 500
    param = prompt_field if failed.code == _CONTEXT_CODE else None
    return ApiError(
        status, failed.code, failed.message, param=param, retry_after_s=RETRY_AFTER_S if status == 503 else None
    )


def from_exception(error: BaseException) -> ApiError:
    """The API's error for any exception. One that nobody expected is logged and told as 500 without details."""
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
            found = ApiError(500, "internal_error", "the server failed to answer this request; its log says why")
    return found


def from_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first field that is wrong, by name."""
    field = tuple(errors[0]["loc"][2:]) if errors else ()  # without ninja's "body" and the argument's name
    if not field:
        return ApiError(400, "invalid_value", "the request's body must be a JSON object")
    name, kind = _shown(field), errors[0]["type"]
    if kind == "extra_forbidden":
        return ApiError(400, "unknown_parameter", f"{name} is not a parameter of this API", param=name)
    if kind == "missing":
        return ApiError(400, "missing_parameter", f"{name} is missing", param=name)
    if LEFT_OUT.intersection(field) and kind != "model_type":
        return ApiError(400, "unsupported_parameter", f"{name} with this value is not supported", param=name)
    return ApiError(400, "invalid_value", f"{name}: {errors[0]['msg']}", param=name)


def _shown(field: Sequence[str | int]) -> str:
    """`messages.0.content`, without what the validator adds to tell alternatives and keys apart."""
    return ".".join(str(part)[:80] for part in field if isinstance(part, int) or part[:1] not in {"<", "["})
