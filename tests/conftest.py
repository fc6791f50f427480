"""Django for tests that need it, passwords that are quick to check, and one torch thread: on two cores more of them
only get into each other's way."""

from __future__ import annotations

import os

import django
import torch
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kvasir_site.settings")
django.setup()
settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # half a second less at each sign-in
torch.set_num_threads(1)
