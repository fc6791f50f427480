"""The site's routes: the pages, the REST APIs, the admin, and what load balancers and Prometheus ask."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

from backbone.api import docs as api_docs
from backbone.api.routes import api
from backbone.api.service import health as api_health
from frontend import views as page_views
from market import operator_views
from market.api import api as market_api

urlpatterns: list[URLPattern | URLResolver] = [
    path("v1/docs", api_docs.page),
    path("v1/docs/<str:name>", api_docs.file),
    path("v1/", api.urls),
    path("api/", market_api.urls),
    path("healthz", api_health.healthz),
    path("readyz", api_health.readyz),
    path("metrics", api_health.metrics),
    path("admin/login/", page_views.sign_in),
    path("admin/", admin.site.urls),
    path("operator/nodes/<str:node_id>/revoke", operator_views.revoke, name="operator_revoke"),
    path("operator/nodes/<str:node_id>/release", operator_views.release, name="operator_release"),
    path("", include("frontend.urls")),
]

handler400 = "backbone.api.errors.bad_request"
handler404 = "kvasir_site.fallbacks.not_found"
handler500 = "backbone.api.errors.server_error"
