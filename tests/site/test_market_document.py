"""docs/reference/market.md against the code: every route, field, code, reason and setting, with its default."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from kvasir.errors import ConfigError
from kvasir_site.typed_settings import market_settings as typed
from kvasir_site.variables import read_environment
from market.api import api
from market.coverage.leases import Refusal
from market.schemas import CoverageBody, RegisterBody, RevokeBody, VolunteerBody
from market.settings import MarketSettings, Registration, TargetBounds

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "reference" / "market.md").read_text()


def codes_in_the_code() -> set[str]:
    """The second argument of every MarketError that `market` makes."""
    found = set()
    for path in (ROOT / "market").rglob("*.py"):
        if path.stem.startswith("rewards"):
            continue  # docs/reference/rewards.md has those
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "MarketError":
                code = node.args[1]
                if isinstance(code, ast.Constant):
                    found.add(str(code.value))
    return found


def test_error_codes() -> None:
    table = DOCUMENT.partition("## Errors")[2].partition("## Settings")[0]
    written = set(re.findall(r"`([a-z_]+)`", table.partition("|---|---|")[2]))
    assert written == codes_in_the_code()


def test_routes() -> None:
    paths = {f"{method} /api{path}" for _, router in api._routers for path, view in router.path_operations.items()
             for operation in view.operations for method in operation.methods}  # fmt: skip
    assert paths
    written = DOCUMENT + (ROOT / "docs" / "reference" / "rewards.md").read_text()
    assert {path for path in paths if path not in written} == set()


@pytest.mark.parametrize("body", [CoverageBody, RegisterBody, RevokeBody, VolunteerBody])
def test_fields(body: type[CoverageBody]) -> None:
    words = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", DOCUMENT.replace("\n", " ")))))
    assert set(body.model_fields) <= words


def test_reasons() -> None:
    for reason in Refusal:
        assert f"| `{reason}` |" in DOCUMENT


def market_settings(environ: dict[str, str]) -> MarketSettings:
    return typed(read_environment(environ))


def test_settings_and_their_defaults() -> None:
    table = DOCUMENT.partition("## Settings")[2]
    names = set(re.findall(r"`(KVASIR_[A-Z_]+)`", table))
    source = inspect.getsource(typed)
    assert names == {f"KVASIR_{name}" for name in re.findall(r"env\[v\.([A-Z_]+)\]", source)}
    usual = MarketSettings()
    for value in (usual.lease_s, usual.volunteer_lease_s, usual.rate_microcredits, usual.node_days):
        assert f"| {value:g} |" in table
    assert market_settings({}) == usual


def test_settings_are_parsed_loudly() -> None:
    made = market_settings({"KVASIR_TARGET_REPLICAS": "10", "KVASIR_REGISTRATION": "invite", "KVASIR_LEASE_S": "2"})
    assert (made.targets, made.registration, made.lease_s) == (TargetBounds(10, 10), Registration.INVITE, 2.0)
    wrong = [("KVASIR_REGISTRATION", "perhaps"), ("KVASIR_TARGET_REPLICAS", "0"), ("KVASIR_MAX_REPLICAS", "0"),
             ("KVASIR_LEASE_S", "nan"), ("KVASIR_REGISTER_RATE", "often")]  # fmt: skip
    for name, value in wrong:
        with pytest.raises(ConfigError, match=f"{name}='{value}'"):
            market_settings({name: value})
    with pytest.raises(ConfigError, match="KVASIR_MAX_REPLICAS=1 is below KVASIR_TARGET_REPLICAS=2"):
        market_settings({"KVASIR_MAX_REPLICAS": "1"})
