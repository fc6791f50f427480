"""The Celery application. The backbone's tasks register here; JSON only, threads only (see settings)."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kvasir_site.settings")

app = Celery("kvasir")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
