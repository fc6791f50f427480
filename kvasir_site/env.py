"""Settings from the environment, parsed loudly: a malformed value stops the start and names variable and value.

Called by `settings` alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from kvasir.errors import ConfigError

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def env_bool(name: str, default: bool, environ: Mapping[str, str] = os.environ) -> bool:
    """A yes or no. Raises ConfigError for anything but 1/0, true/false, yes/no, on/off."""
    value = environ.get(name)
    if value is None:
        return default
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise ConfigError(f"{name}={value!r} is not a yes or no: use 1 or 0")


def env_choice(name: str, choices: Sequence[str], environ: Mapping[str, str] = os.environ) -> str:
    """One of a few words; the first is the default. Raises ConfigError for any other."""
    value = environ.get(name, choices[0])
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(choices)}")
    return value


def env_list(name: str, default: list[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Comma-separated names; blanks around them are dropped. Raises ConfigError for an empty item."""
    value = environ.get(name)
    if value is None:
        return default
    items = [item.strip() for item in value.split(",")]
    if not all(items):
        raise ConfigError(f"{name}={value!r} has an empty item: separate names by single commas")
    return items


def env_secret(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """A secret of at least 32 characters, or None when unset. The value is never part of the message."""
    value = environ.get(name)
    if value is not None and len(value) < 32:
        raise ConfigError(f"{name} has {len(value)} characters: a secret needs at least 32")
    return value


def env_int(name: str, default: int, low: int, high: int, environ: Mapping[str, str] = os.environ) -> int:
    """A whole number. Raises ConfigError when it is none, or not from `low` to `high`."""
    value = environ.get(name)
    if value is None:
        return default
    try:
        number = int(value)
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise ConfigError(f"{name}={value!r} is not a whole number from {low} to {high}")
    return number


def env_float(name: str, default: float, low: float, high: float, environ: Mapping[str, str] = os.environ) -> float:
    """A number. Raises ConfigError when it is none, or not from `low` to `high`."""
    value = environ.get(name)
    if value is None:
        return default
    try:
        number = float(value)
    except ValueError:
        number = low - 1
    if not low <= number <= high:  # a NaN is in no range
        raise ConfigError(f"{name}={value!r} is not a number from {low:g} to {high:g}")
    return number


def env_http_url(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """An http:// or https:// address, or "" when unset. Raises ConfigError for anything else."""
    value = environ.get(name, "")
    parts = urlsplit(value)
    if value and (parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.fragment):
        raise ConfigError(f"{name} is not an address like https://host/model.gguf (without user name and fragment)")
    return value
