"""/operator: nodes, evidence and facts for staff. Others are sent to sign in. It only shows: forms go to the market."""

from __future__ import annotations

from django.contrib.admin.views.decorators import staff_member_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from frontend.operator_facts import live_readings, model_facts, nodes_page, quarantined_nodes


@require_safe
@never_cache
@staff_member_required
def page(request: HttpRequest) -> HttpResponse:
    """The page; `q` searches nodes, `page` turns."""
    search = request.GET.get("q", "")
    readings, problem = live_readings()
    nodes, rows = nodes_page(search, request.GET.get("page", "1"), readings)
    facts = {
        "search": search,
        "nodes": nodes,
        "rows": rows,
        "quarantined": quarantined_nodes(),
        "model": model_facts(),
        "readings": readings,
        "problem": problem,
        "done": request.GET.get("done", ""),
        "done_node": request.GET.get("node", "")[:64],
    }
    return render(request, "frontend/operator.html", facts)
