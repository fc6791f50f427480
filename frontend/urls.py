"""The routes of the pages. `kvasir_site.urls` mounts them at the root."""

from __future__ import annotations

from django.urls import path
from django.views.i18n import set_language

from frontend import views
from frontend.static_files import static_file

urlpatterns = [
    path("", views.home, name="home"),
    path("contribute", views.contribute, name="contribute"),
    path("dashboard", views.dashboard, name="dashboard"),
    path("live/snapshot", views.snapshot, name="live_snapshot"),
    path("playground", views.playground, name="playground"),
    path("rewards", views.rewards, name="rewards"),
    path("operator", views.operator, name="operator"),
    path("language", set_language, name="language"),
    path("jsi18n", views.catalog, name="jsi18n"),
    path("favicon.ico", views.favicon),
    path("static/<path:path>", static_file, name="static"),
]
