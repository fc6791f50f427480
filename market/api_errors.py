"""From every exception to what a client of the market is told: {"error": {"code", "message"}}, and Retry-After.

Called by `market.api`. An exception that nobody expected is logged and told as 500 without details.
"""

from __future__ import annotations

import logging
import math

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError
from redis.exceptions import RedisError

from market.errors import MarketError
from market.nodes.tokens import TokenRefusedError

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 5.0
_HANDLED = (MarketError, TokenRefusedError, RedisError, ValidationError, RequestDataTooBig, HttpError, Exception)


def from_exception(error: BaseException) -> MarketError:
    """The refusal for any exception."""
    match error:
        case MarketError():
            found = error
        case TokenRefusedError():
            found = MarketError(401, "token_refused", str(error))
        case RedisError():
            message = "the market's store cannot be reached"
            found = MarketError(503, "redis_lost", message, retry_after_s=RETRY_AFTER_S)
        case ValidationError():
            found = _from_validation(error)
        case RequestDataTooBig():
            found = MarketError(413, "too_large", "the body is too large")
        case HttpError():
            found = MarketError(error.status_code, "malformed", str(error))
        case _:
            logger.error("a request of the market failed", exc_info=error)
            found = MarketError(500, "internal_error", "the site failed to answer this request; its log says why")
    return found


def response_for(error: MarketError) -> HttpResponse:
    """A refusal as a reply."""
    response = JsonResponse({"error": {"code": error.code, "message": str(error)}}, status=error.status)
    if error.retry_after_s is not None:
        response["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.status == 401:
        response["WWW-Authenticate"] = "Bearer"
    return response


def handle_all(api: NinjaAPI) -> None:
    """Let this API answer every exception in the market's form."""

    def on_exception(_request: HttpRequest, error: Exception | type[Exception]) -> HttpResponse:
        return response_for(from_exception(error if isinstance(error, Exception) else error()))

    for kind in _HANDLED:
        api.add_exception_handler(kind, on_exception)


def _from_validation(error: ValidationError) -> MarketError:
    """The first field that is wrong, by name."""
    if not error.errors:
        return MarketError(400, "malformed", "the body is not as it should be")
    first = error.errors[0]
    place = first["loc"]
    field = ".".join(str(part) for part in place[1 if place[0] == "query" else 2 :]) or "the body"
    return MarketError(400, "malformed", f"{field}: {first['msg']}")
