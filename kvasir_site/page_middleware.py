"""Django's middleware for what people look at: sessions, language, forms, who is signed in. Named by the settings.

Their hooks may read SQL, so they run in a thread, as Django has it. Requests of programs (the APIs, health, static
files) pass by them on the event loop: they have neither cookies nor a language.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.auth import middleware as auth
from django.contrib.messages import middleware as messages
from django.contrib.sessions import middleware as sessions
from django.middleware import csrf, locale

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.http.response import HttpResponseBase

PROGRAMS = ("/v1/", "/api/", "/static/", "/healthz", "/readyz", "/metrics", "/live")


def is_for_people(request: HttpRequest) -> bool:
    """Return whether this request is for a page."""
    return not request.path_info.startswith(PROGRAMS)


class _PagesOnly:
    """Comes before a class of Django's."""

    get_response: Any

    async def __acall__(self, request: HttpRequest) -> HttpResponseBase:
        """As Django's, for pages."""
        whole: Any = super()
        answer: HttpResponseBase = await (
            whole.__acall__(request) if is_for_people(request) else self.get_response(request)
        )
        return answer


class SessionMiddleware(_PagesOnly, sessions.SessionMiddleware):
    """Sessions of staff; no page makes one for visitors."""


class LocaleMiddleware(_PagesOnly, locale.LocaleMiddleware):
    """The language: a cookie that the visitor chose, else what the browser prefers."""


class AuthenticationMiddleware(_PagesOnly, auth.AuthenticationMiddleware):
    """Attach the signed-in user to the request."""


class MessageMiddleware(_PagesOnly, messages.MessageMiddleware):
    """Carry the admin's messages after an action."""


class CsrfViewMiddleware(_PagesOnly, csrf.CsrfViewMiddleware):
    """Forms must come from this site's own pages."""

    # a coroutine, so that Django starts no thread for it; it looks at cookies and the form
    async def process_view(  # type: ignore[override]
        self, request: HttpRequest, callback: Any, callback_args: Any, callback_kwargs: Any
    ) -> Any:
        """As Django's, for pages."""
        if not is_for_people(request):
            return None
        return super().process_view(request, callback, callback_args, callback_kwargs)
