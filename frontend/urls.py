"""The pages' routes and nothing else; `kvasir_site.urls` mounts them at the root. Each page has a views module."""

from __future__ import annotations

from django.urls import path
from django.views.i18n import set_language

from frontend import (
    views,
    views_contribute,
    views_dashboard,
    views_live,
    views_operator,
    views_playground,
    views_rewards,
)
from frontend.static_files import static_file

urlpatterns = [
    path("", views.home, name="home"),
    path("contribute", views_contribute.page, name="contribute"),
    path("dashboard", views_dashboard.page, name="dashboard"),
    path("live/snapshot", views_live.snapshot, name="live_snapshot"),
    path("playground", views_playground.page, name="playground"),
    path("rewards", views_rewards.page, name="rewards"),
    path("operator", views_operator.page, name="operator"),
    path("language", set_language, name="language"),
    path("jsi18n", views.catalog, name="jsi18n"),
    path("favicon.ico", views.favicon),
    path("static/<path:path>", static_file, name="static"),
]
