"""Answers where no view could give one: a page for people, the API's shape or a line of text for programs.

Named by `kvasir_site.urls` as its handler of 404; other errors have no page, since what failed might be the pages.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from backbone.api import errors as api_errors
from kvasir_site.page_middleware import is_for_people


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer a path that no route serves."""
    if is_for_people(request) and "text/html" in request.headers.get("Accept", ""):
        return render(request, "frontend/not_found.html", status=404)
    return api_errors.not_found(request, exception)
