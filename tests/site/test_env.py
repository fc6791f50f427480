"""Settings are parsed loudly: a malformed value names the variable, the value and what would be right."""

from __future__ import annotations

import pytest

from kvasir.errors import ConfigError
from kvasir_site.env import env_bool, env_choice, env_http_url, env_list, env_secret


@pytest.mark.parametrize(("text", "value"), [("1", True), ("on", True), ("TRUE", True), ("0", False), ("no", False)])
def test_a_yes_or_no(text: str, value: bool) -> None:
    assert env_bool("KVASIR_X", not value, {"KVASIR_X": text}) is value


def test_defaults_hold_when_nothing_is_set() -> None:
    assert env_bool("KVASIR_X", True, {}) is True
    assert env_list("KVASIR_X", ["a"], {}) == ["a"]
    assert env_secret("KVASIR_X", {}) is None


def test_anything_else_stops_the_start_with_name_and_value() -> None:
    with pytest.raises(ConfigError, match="KVASIR_X='maybe'"):
        env_bool("KVASIR_X", True, {"KVASIR_X": "maybe"})
    with pytest.raises(ConfigError, match="empty item"):
        env_list("KVASIR_X", [], {"KVASIR_X": "a,,b"})


def test_one_of_a_few_words() -> None:
    assert env_choice("KVASIR_X", ("open", "off"), {}) == "open"
    assert env_choice("KVASIR_X", ("open", "off"), {"KVASIR_X": "off"}) == "off"
    with pytest.raises(ConfigError, match="KVASIR_X='shut' is not one of open, off"):
        env_choice("KVASIR_X", ("open", "off"), {"KVASIR_X": "shut"})


def test_a_short_secret_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError, match="5 characters") as raised:
        env_secret("KVASIR_X", {"KVASIR_X": "hello"})
    assert "hello" not in str(raised.value)
    assert env_secret("KVASIR_X", {"KVASIR_X": "x" * 32}) == "x" * 32


def test_names_are_stripped() -> None:
    assert env_list("KVASIR_X", [], {"KVASIR_X": "a.example, b.example"}) == ["a.example", "b.example"]


@pytest.mark.parametrize("value", ["ftp://host/x", "host/x", "http://", "https://me:secret@host/x", "https://host/x#y"])
def test_an_address_that_cannot_be_fetched_is_refused_without_showing_it(value: str) -> None:
    with pytest.raises(ConfigError, match="KVASIR_X") as raised:
        env_http_url("KVASIR_X", {"KVASIR_X": value})
    assert value not in str(raised.value)
    assert env_http_url("KVASIR_X", {"KVASIR_X": "https://host/model.gguf"}) == "https://host/model.gguf"
    assert env_http_url("KVASIR_X", {}) == ""
