"""docs/operate/deploy.md and deploy/ against the code: every variable, command and path in them exists."""

from __future__ import annotations

import ast
import configparser
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operate" / "deploy.md"
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
COMMANDS = {path.stem for path in ROOT.glob("*/management/commands/*.py")}
NAME = re.compile(r"(KVASIR_[A-Z0-9_]+|DATABASE_URL|REDIS_URL)")

# Imports the settings with an environment that notes which of our variables it is asked for.
LISTEN = """
import json, os
asked = set()
class Noting(type(os.environ)):
    def __getitem__(self, name):
        asked.add(name)
        return super().__getitem__(name)
    def get(self, name, default=None):
        asked.add(name)
        return super().get(name, default)
os.environ.__class__ = Noting
import kvasir_site.settings
from kvasir_site.supervisor.settings import UpSettings
UpSettings.from_environ()
print(json.dumps(sorted(asked)))
"""


def table() -> dict[str, str]:
    """The page's variables and their defaults."""
    rows = re.findall(r"^\| `([A-Z_0-9]+)` \|\s*(.*?)\s*\| .+ \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == len(dict(rows)), "a variable has two rows"
    return dict(rows)


def in_code() -> set[str]:
    """What settings ask the environment for, and names that other code reads by themselves."""
    clean = {name: value for name, value in os.environ.items() if not NAME.fullmatch(name)}
    listened = subprocess.run(
        [sys.executable, "-c", LISTEN], cwd=ROOT, env=clean, capture_output=True, text=True, check=True, timeout=60
    )
    found = {name for name in json.loads(listened.stdout) if NAME.fullmatch(name)}
    for room in ("kvasir", "market", "relay", "backbone", "frontend"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
                    found.add(node.value)
    return found


def test_the_table_has_every_variable_and_no_other() -> None:
    documented, read = set(table()), in_code()
    assert read - documented == set(), "add rows to the table of docs/operate/deploy.md"
    assert documented - read == set(), "nothing reads these"


def test_commands_on_the_page_and_in_deploy_exist() -> None:
    texts = [PAGE.read_text(), *(path.read_text() for path in UNITS)]
    assert set(re.findall(r"manage\.py ([a-z_]+)", "\n".join(texts))) - COMMANDS == {"migrate"}


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yml").read_text())
    return loaded


def test_compose_starts_commands_that_exist_with_variables_that_are_read() -> None:
    services, known = compose()["services"], set(table())
    ours = {name: service for name, service in services.items() if service["image"] == "kvasir"}
    assert set(ours) == {"migrate", "web", "relay", "backbone", "worker"}
    for name, service in ours.items():
        if "entrypoint" not in service:
            assert service["command"][0] in COMMANDS | {"migrate"}, name
        assert {v for v in service.get("environment", {}) if v.startswith("KVASIR_")} <= known, name
        assert set(service["depends_on"]) <= set(services), name


def test_compose_gives_web_and_backbone_the_same_model_and_keeps_receipts() -> None:
    services = compose()["services"]
    web, backbone = services["web"], services["backbone"]
    assert web["environment"]["KVASIR_MODEL"] == backbone["environment"]["KVASIR_MODEL"]
    (models,) = web["volumes"]
    assert backbone["volumes"] == [models, "run:/srv/kvasir/run"]
    assert "run" in compose()["volumes"]


def test_compose_asks_for_nothing_that_the_example_leaves_out() -> None:
    text = (ROOT / "deploy" / "compose.yml").read_text()
    wanted = set(re.findall(r"(?<!\$)\$\{([A-Z_]+)", text))
    offered = set(re.findall(r"^([A-Z_]+)=", (ROOT / "deploy" / "env.example").read_text(), re.MULTILINE))
    assert wanted == offered


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_are_whole(unit: Path) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=")
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit.read_text())
    assert parser.sections() == ["Unit", "Service", "Install"]
    service = parser["Service"]
    assert service["ExecStart"].startswith("/srv/kvasir/.venv/bin/")
    assert service["Restart"] == "always"
    assert int(service["TimeoutStopSec"]) >= 20


def test_nginx_and_the_page_agree_on_ports() -> None:
    page = PAGE.read_text()
    assert page.count("127.0.0.1:8000") == 2  # nginx and Caddy
    assert table()["KVASIR_PORT"] == "`8000`"
