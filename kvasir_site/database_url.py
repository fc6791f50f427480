"""DATABASE_URL as Django's setting: SQLite by default, PostgreSQL by URL. Called by `settings` alone.

A URL that cannot be used stops the start; its password is never part of the message.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from kvasir.errors import ConfigError

# Writers queue up instead of failing: several processes of the service write to one file.
_SQLITE_OPTIONS = {
    "timeout": 20,
    "transaction_mode": "IMMEDIATE",
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}


def database_from_url(url: str, default: Path) -> dict[str, object]:
    """Django's database setting. Raises ConfigError for another scheme or a URL without a name."""
    if not url:
        return _sqlite(default)
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        path = unquote(parts.path)
        if parts.netloc or len(path) < 2:
            raise ConfigError("DATABASE_URL: for SQLite write sqlite:///path, with a fourth / for an absolute path")
        return _sqlite(Path(path[1:]))
    if parts.scheme not in {"postgres", "postgresql"}:
        raise ConfigError(f"DATABASE_URL has scheme {parts.scheme!r}: sqlite and postgresql are understood")
    name = unquote(parts.path.removeprefix("/"))
    if not name:
        raise ConfigError("DATABASE_URL names no database: write postgresql://user:password@host:5432/name")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "OPTIONS": dict(parse_qsl(parts.query)),
        "CONN_MAX_AGE": 60,
    }


def _sqlite(path: Path) -> dict[str, object]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "OPTIONS": dict(_SQLITE_OPTIONS)}
