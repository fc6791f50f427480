"""/rewards: an account's balance and days of work. The page's script does the rest."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """The page."""
    return render(request, "frontend/rewards.html")
