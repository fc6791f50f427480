"""/operator: nodes, evidence and facts for staff. Others are sent to sign in."""

from __future__ import annotations

from django.contrib.admin.views.decorators import staff_member_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe


@require_safe
@staff_member_required
def page(request: HttpRequest) -> HttpResponse:
    """The page."""
    return render(request, "frontend/operator.html")
