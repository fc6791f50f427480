"""A database of a test's own, in place of the site's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.core.management import call_command
from django.db import connections


@contextmanager
def database_at(path: Path) -> Iterator[str]:
    """Django uses this file, with all tables, until the end; yields its DATABASE_URL."""
    settings = connections.databases["default"]
    before = settings["NAME"]
    _forget_connection()
    settings["NAME"] = path
    try:
        call_command("migrate", verbosity=0)
        yield f"sqlite:///{path}"
    finally:
        _forget_connection()
        settings["NAME"] = before


def _forget_connection() -> None:
    connections["default"].close()
    del connections["default"]
