"""Django for tests that need it, and one torch thread: on two cores more of them only get into each other's way."""

from __future__ import annotations

import os

import django
import torch

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kvasir_site.settings")
django.setup()
torch.set_num_threads(1)
