"""docs/operate/ and deploy/ against the code: every variable, command and path in them exists."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir_site.environment import Group, Variable, shown
from kvasir_site.variables import PORT, REMOVED, VARIABLES

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "operate"
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
COMMANDS = {path.stem for path in ROOT.glob("*/management/commands/*.py")}
NAME = re.compile(r"(KVASIR_[A-Z0-9_]+|DATABASE_URL|REDIS_URL)")


TITLES = {
    Group.FIRST: "The six that matter first",
    Group.MODEL: "Model",
    Group.MEMORY: "Memory",
    Group.SWARM: "Swarm",
    Group.TRUST: "Trust",
    Group.LIMITS: "Limits",
    Group.RUN: "make run",
    Group.EXPERIMENTS: "Experiments",
}


def tables() -> dict[str, dict[str, str]]:
    """The variables of each section of the page, with their defaults."""
    found = {}
    for section in (PAGES / "variables.md").read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        rows = re.findall(r"^\| `([A-Z_0-9]+)` \|\s*(.*?)\s*\| .+ \|$", text, re.MULTILINE)
        assert len(rows) == len(dict(rows)), "a variable has two rows"
        found[title] = dict(rows)
    return found


def default_of(variable: Variable[Any]) -> str:
    """The default as the page writes it."""
    value = shown(variable.default)
    return variable.shown_default or (f"`{value}`" if value else "")


def test_the_tables_have_every_variable_with_its_group_and_default() -> None:
    declared = {
        title: {v.name: default_of(v) for v in VARIABLES if v.group is group} for group, title in TITLES.items()
    }
    assert tables() == declared, "edit docs/operate/variables.md"
    assert len(declared[TITLES[Group.FIRST]]) == 6


def test_nothing_else_reads_a_variable() -> None:
    """The light package alone has variables of its own; they are declared too."""
    declared, found = {variable.name for variable in VARIABLES}, set()
    for room in ("kvasir", "market", "relay", "backbone", "frontend", "kvasir_site"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
                    found.add(node.value)
    assert found <= declared | set(REMOVED)


def test_commands_on_the_page_and_in_deploy_exist() -> None:
    texts = [path.read_text() for path in (*PAGES.glob("*.md"), *UNITS)]
    named = set(re.findall(r"manage\.py ([a-z_]+)", "\n".join(texts)))
    assert named - COMMANDS == {"migrate", "createsuperuser"}


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yml").read_text())
    return loaded


def test_compose_starts_commands_that_exist_with_variables_that_are_read() -> None:
    services, known = compose()["services"], {v.name for v in VARIABLES}
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
    page = (PAGES / "deploy.md").read_text()
    assert page.count("127.0.0.1:8000") == 2  # nginx and Caddy
    assert PORT.default == 8000
