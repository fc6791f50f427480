"""Settings from environment variables: types, defaults, and one reading that stops the start at a wrong value.

`variables` declares every variable with these types. An `Environment` parses all of them once; everything else takes
typed values from it. A value that cannot be used is a ConfigError that names the variable, the value and what would be
right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar, cast
from urllib.parse import urlsplit

from kvasir.byte_sizes import parse_size
from kvasir.errors import ConfigError

T = TypeVar("T")
Parse = Callable[[str, str], T]  # of a variable's name and its text
LEAST_SECRET = 32
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class Group(StrEnum):
    """Groups of variables, in the order in which the documentation lists them."""

    FIRST = "first"  # the six that matter first
    MODEL = "model"
    MEMORY = "memory"
    SWARM = "swarm"
    TRUST = "trust"
    LIMITS = "limits"
    RUN = "make run"
    EXPERIMENTS = "experiments"


@dataclass(frozen=True, slots=True)
class Variable(Generic[T]):
    """One environment variable. `shown_default` stands for a default that is worked out at the start."""

    name: str
    group: Group
    parse: Parse[T]
    default: T
    meaning: str
    is_secret: bool = False
    shown_default: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable as it is in force: its value as text, and where the value comes from."""

    variable: Variable[Any]
    text: str
    source: str  # "environment" or "default"


class Environment:
    """All variables of one environment, parsed once."""

    def __init__(
        self, environ: Mapping[str, str], variables: Iterable[Variable[Any]], removed: Mapping[str, str]
    ) -> None:
        """Parse `environ`. An empty value counts as unset, except for a secret.

        Raises ConfigError for a value that cannot be used, and for a name in `removed`, with the sentence given there.
        """
        for name, advice in removed.items():
            if name in environ:
                raise ConfigError(f"{name} is no longer a setting: {advice}")
        self._variables = tuple(variables)
        self._environ = environ
        self._values = {v.name: v.parse(v.name, environ[v.name]) for v in self._variables if self.is_set(v)}

    def is_set(self, variable: Variable[Any]) -> bool:
        """Return whether the environment gives this variable a value."""
        value = self._environ.get(variable.name)
        return value is not None and bool(value or variable.is_secret)

    def __getitem__(self, variable: Variable[T]) -> T:
        """Return the variable's value, or its default."""
        return cast(T, self._values.get(variable.name, variable.default))

    def in_force(self) -> list[Setting]:
        """Return every variable with its value as text, secrets hidden, in the order of declaration."""
        return [self._setting(variable) for variable in self._variables]

    def _setting(self, variable: Variable[Any]) -> Setting:
        if not self.is_set(variable):
            return Setting(variable, variable.shown_default or shown(variable.default), "default")
        return Setting(variable, "(hidden)" if variable.is_secret else self._environ[variable.name], "environment")

    def unknown(self) -> list[str]:
        """Return names in the environment that look like Kvasir's and are not."""
        known = {variable.name for variable in self._variables}
        return sorted(name for name in self._environ if name.startswith("KVASIR_") and name not in known)


def shown(value: object) -> str:
    """Return a default as an operator would write it; "" for none."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def yes_or_no(name: str, text: str) -> bool:
    """Parse 1/0, true/false, yes/no or on/off."""
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ConfigError(f"{name}={text!r} is not a yes or no: use 1 or 0")


def word_of(choices: Iterable[str], retired: Mapping[str, str] | None = None) -> Parse[str]:
    """Return a parser of one word out of `choices`; a `retired` word is refused with the sentence given for it."""
    words = tuple(choices)

    def parse(name: str, text: str) -> str:
        if retired and text in retired:
            raise ConfigError(f"{name}={text} is no longer supported: {retired[text]}")
        if text not in words:
            raise ConfigError(f"{name}={text!r} is not one of {', '.join(words)}")
        return text

    return parse


def names(name: str, text: str) -> tuple[str, ...]:
    """Parse names separated by commas, without the blanks around them."""
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        raise ConfigError(f"{name}={text!r} has an empty item: separate names by single commas")
    return items


def secret(name: str, text: str) -> str:
    """Parse a secret of at least 32 characters. The error never shows it."""
    if len(text) < LEAST_SECRET:
        raise ConfigError(f"{name} has {len(text)} characters: a secret needs at least {LEAST_SECRET}")
    return text


def whole(low: int, high: int) -> Parse[int]:
    """Return a parser of whole numbers from `low` to `high`."""

    def parse(name: str, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise ConfigError(f"{name}={text!r} is not a whole number from {low} to {high}")
        return number

    return parse


def wholes(low: int, high: int) -> Parse[tuple[int, ...]]:
    """Return a parser of whole numbers separated by commas."""
    one = whole(low, high)
    return lambda name, text: tuple(one(name, item) for item in names(name, text))


def number(low: float, high: float) -> Parse[float]:
    """Return a parser of numbers from `low` to `high`."""

    def parse(name: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:  # a NaN is in no range
            raise ConfigError(f"{name}={text!r} is not a number from {low:g} to {high:g}")
        return value

    return parse


def size(name: str, text: str) -> int:
    """Parse a number of bytes such as 8GiB."""
    try:
        return parse_size(text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def http_url(name: str, text: str) -> str:
    """Parse an http:// or https:// address without user name and fragment. The error never shows it."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.fragment:
        raise ConfigError(f"{name} is not an address like https://host/model.gguf (without user name and fragment)")
    return text


def words(_name: str, text: str) -> str:
    """Parse any text."""
    return text


def path(_name: str, text: str) -> Path:
    """Parse a path; its user reports a file that is not there."""
    return Path(text)
