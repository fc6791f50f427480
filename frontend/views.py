"""The landing page, the catalogue of texts for JavaScript, and what browsers ask for unasked."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect
from django.shortcuts import render
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe
from django.views.i18n import JavaScriptCatalog

catalog = cache_control(no_cache=True)(JavaScriptCatalog.as_view(packages=["frontend"]))


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """What this is, and the way to each page."""
    return render(request, "frontend/home.html")


@require_safe
def favicon(_request: HttpRequest) -> HttpResponse:
    """The address that browsers guess."""
    return HttpResponsePermanentRedirect("/static/kvasir/ui/favicon.svg")
