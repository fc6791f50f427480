"""Django for tests that need it, without a plugin."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kvasir_site.settings")
django.setup()
