"""Settings are parsed once: a malformed value names the variable, the value and what would be right."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import override_settings

from kvasir.errors import ConfigError
from kvasir_site import variables as v
from kvasir_site.environment import Environment, Group, Variable, http_url, names, path, secret, word_of, yes_or_no
from kvasir_site.variables import REMOVED, VARIABLES, read_environment


@pytest.mark.parametrize(("text", "value"), [("1", True), ("on", True), ("TRUE", True), ("0", False), ("no", False)])
def test_a_yes_or_no(text: str, value: bool) -> None:
    assert yes_or_no("KVASIR_X", text) is value


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (yes_or_no, "maybe", "KVASIR_X='maybe' is not a yes or no"),
        (names, "a,,b", "empty item"),
        (word_of(("open", "off")), "shut", "KVASIR_X='shut' is not one of open, off"),
        (word_of(("open",), {"ajar": "set KVASIR_X=open"}), "ajar", "KVASIR_X=ajar is no longer.*set KVASIR_X=open"),
    ],
)
def test_a_wrong_value_is_named(parse: Callable[[str, str], Any], text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse("KVASIR_X", text)


def test_a_short_secret_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError, match="5 characters") as raised:
        secret("KVASIR_X", "hello")
    assert "hello" not in str(raised.value)
    assert secret("KVASIR_X", "x" * 32) == "x" * 32


def test_names_are_stripped() -> None:
    assert names("KVASIR_X", "a.example, b.example") == ("a.example", "b.example")


@pytest.mark.parametrize("value", ["ftp://host/x", "host/x", "http://", "https://me:secret@host/x", "https://host/x#y"])
def test_an_address_that_cannot_be_fetched_is_refused_without_showing_it(value: str) -> None:
    with pytest.raises(ConfigError, match="KVASIR_X") as raised:
        http_url("KVASIR_X", value)
    assert value not in str(raised.value)
    assert http_url("KVASIR_X", "https://host/model.gguf") == "https://host/model.gguf"


def test_an_empty_value_counts_as_unset_but_not_for_a_secret() -> None:
    env = read_environment({"KVASIR_SLOTS": "", "KVASIR_MODEL": ""})
    assert (env[v.SLOTS], env[v.MODEL]) == (64, v.DEMO_MODEL)
    with pytest.raises(ConfigError, match="KVASIR_SECRET_KEY has 0 characters"):
        read_environment({"KVASIR_SECRET_KEY": ""})


@pytest.mark.parametrize("name", sorted(REMOVED))
def test_a_setting_that_is_gone_stops_the_start_with_what_to_do(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} is no longer a setting: .*(remove it|set KVASIR_)"):
        read_environment({name: "1"})


def test_variables_are_declared_once_and_six_come_first() -> None:
    declared = [variable.name for variable in VARIABLES]
    assert len(declared) == len(set(declared)) and not set(declared) & set(REMOVED)
    order = list(Group)
    assert [v.group for v in VARIABLES] == sorted((v.group for v in VARIABLES), key=order.index)
    assert sum(variable.group is Group.FIRST for variable in VARIABLES) == 6


def test_every_default_is_a_value_that_the_parser_accepts() -> None:
    for variable in VARIABLES:
        if isinstance(variable.default, int | float | str) and variable.default != "":
            text = str(int(variable.default)) if isinstance(variable.default, bool) else str(variable.default)
            assert variable.parse(variable.name, text) == variable.default, variable.name


def test_check_settings_prints_values_and_sources_and_hides_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    env = read_environment({"KVASIR_TOKEN": "very-secret", "KVASIR_SLOTS": "7", "KVASIR_SLOT": "8"})
    out, err = io.StringIO(), io.StringIO()
    with override_settings(ENVIRONMENT=env):
        call_command("check_settings", stdout=out, stderr=err)
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "KVASIR_SLOTS 7 (environment): sequences at once in a backbone" in lines
    assert any(line.startswith("KVASIR_PORT 8000 (default)") for line in lines)
    assert any(line.startswith("KVASIR_TOKEN (hidden) (environment)") for line in lines)
    assert [line for line in lines if line in set(Group)] == list(Group)
    assert "very-secret" not in out.getvalue() + err.getvalue()
    assert "KVASIR_SLOT is set but is not a setting" in err.getvalue()


def test_a_path_is_a_path() -> None:
    variable = Variable("KVASIR_X", Group.FIRST, path, Path("a"), "")
    assert Environment({"KVASIR_X": "b/c"}, [variable], {})[variable] == Path("b/c")
