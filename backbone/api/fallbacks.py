"""What Django itself answers when no view could: in the API's shape for the API's paths, in a line of text elsewhere.

Named by `kvasir_site.urls` as its error handlers.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from backbone.api.errors import ApiError

API_PATH = "/v1/"


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - Django passes it by name
    """A host that is not allowed, or a request that Django does not take."""
    message = "this request is refused; if the host name is right, KVASIR_ALLOWED_HOSTS must have it"
    return _answer(request, ApiError(400, "bad_request", message))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - Django passes it by name
    """A path that nobody serves."""
    return _answer(request, ApiError(404, "unknown_url", "there is nothing at this address"))


def server_error(request: HttpRequest) -> HttpResponse:
    """An exception outside the API's views; Django has logged it."""
    return _answer(request, ApiError(500, "internal_error", "the server failed; its log says why"))


def _answer(request: HttpRequest, error: ApiError) -> HttpResponse:
    if request.path_info.startswith(API_PATH):
        return error.response()
    return HttpResponse(f"{error}\n", status=error.status, content_type="text/plain; charset=utf-8")
