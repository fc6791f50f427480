"""Django's middleware without threads. The site's settings name these instead of Django's own.

Django's adapter hands every hook of a middleware to a thread of the request, two for each request. These hooks only
look at headers, so they run on the event loop. A class whose hooks touch a database must not be added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.http.response import HttpResponseBase
from django.middleware import common, security
from django.utils.deprecation import MiddlewareMixin

from frontend.content_policy import content_policy

if TYPE_CHECKING:
    from django.http import HttpRequest


class _OnTheLoop:
    """Comes before a class of Django's that has both hooks."""

    process_request: Any
    process_response: Any
    get_response: Any

    async def __acall__(self, request: HttpRequest) -> HttpResponseBase:
        """As Django's, which calls the hooks in a thread."""
        response = self.process_request(request) or await self.get_response(request)
        answer: HttpResponseBase = self.process_response(request, response)
        return answer


class SecurityMiddleware(_OnTheLoop, security.SecurityMiddleware):
    """Headers against sniffing, for referrers and openers; the redirect to https where it is asked for."""


class CommonMiddleware(_OnTheLoop, common.CommonMiddleware):
    """Checks the host name, adds slashes and lengths."""


class ContentPolicyMiddleware(_OnTheLoop, MiddlewareMixin):
    """The pages' Content-Security-Policy, wherever a view has set none of its own."""

    def process_request(self, request: HttpRequest) -> None:
        """Nothing: the way out is what counts."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Set the header."""
        if not response.has_header("Content-Security-Policy") and response.status_code != 400:  # its host may be none
            response["Content-Security-Policy"] = content_policy(request.get_host(), settings.WORKER_RELAY_URL)
        return response
