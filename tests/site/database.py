"""A database of a test's own, in place of the site's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from django.core.management import call_command
from django.db import connections


@contextmanager
def database_at(path: Path) -> Iterator[str]:
    """Django uses this file, with all tables, until the end; yields its DATABASE_URL."""
    if not path.exists():
        path.write_bytes(_with_all_tables())
    with _using(path):
        yield f"sqlite:///{path}"


@cache
def _with_all_tables() -> bytes:
    """A new database's file. Some two hundred tests want one, and migrating takes half a second."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new.sqlite3"
        with _using(path):
            call_command("migrate", verbosity=0)
        return path.read_bytes()


@contextmanager
def _using(path: Path) -> Iterator[None]:
    settings = connections.databases["default"]
    before = settings["NAME"]
    _forget_connection()
    settings["NAME"] = path
    try:
        yield
    finally:
        _forget_connection()
        settings["NAME"] = before


def _forget_connection() -> None:
    connections["default"].close()
    del connections["default"]
