"""The forms of the operator's page: revoke a node, end a quarantine. `kvasir_site.urls` mounts them.

Only for signed-in staff, checked by Django's session and CSRF. Each view redirects to the page of its form with the
result. Views block on SQL and Redis; Django runs them in a thread.
"""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib.admin.views.decorators import staff_member_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from kvasir.errors import ConfigError
from market.errors import MarketError
from market.nodes import tokens, trust_store
from market.service import service


@require_POST
@staff_member_required
def revoke(request: HttpRequest, node_id: str) -> HttpResponse:
    """Revoke a node: its token, its coverage and its leases end at once."""
    try:
        tokens.revoke(node_id)
    except ConfigError as error:
        raise Http404(str(error)) from error
    _take_out(node_id)
    return _back(request, "revoked", node_id)


@require_POST
@staff_member_required
def release(request: HttpRequest, node_id: str) -> HttpResponse:
    """End a node's quarantine: it starts again as unproven. Backbones learn of it within seconds."""
    try:
        trust_store.release(node_id)
    except ConfigError:
        return _back(request, "not_quarantined", node_id)
    service().memory.forget_node(node_id)
    return _back(request, "released", node_id)


def _take_out(node_id: str) -> None:
    market = service()
    market.memory.forget_node(node_id)
    try:
        participation = market.participation()
    except MarketError:  # a site without a model has no coverage
        return
    participation.store.leave(node_id)


def _back(request: HttpRequest, done: str, node_id: str) -> HttpResponse:
    """Redirect to the page that the form names, if it is on this site."""
    place = request.POST.get("next", "/")
    if not url_has_allowed_host_and_scheme(place, {request.get_host()}, require_https=request.is_secure()):
        place = "/"
    return HttpResponseRedirect(f"{place.partition('?')[0]}?{urlencode({'done': done, 'node': node_id})}")
