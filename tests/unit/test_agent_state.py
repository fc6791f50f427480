"""What a worker keeps over restarts: read back as it was, private, of one site, of one process."""

from __future__ import annotations

import math
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from kvasir.errors import ConfigError
from kvasir.experts import ExpertRange
from kvasir.worker.agent.config import AgentConfig
from kvasir.worker.agent.market_client import NodeCredentials, given_credentials
from kvasir.worker.agent.plan_state import Piece, SiteModel
from kvasir.worker.agent.state import SavedState, StateDirectory
from kvasir.worker.command_line import default_directory, parse_arguments, parse_command
from kvasir.worker.serving.config import RelayAccess, WorkerConfig

SITE = "https://site.test"
PIECES = (Piece(ExpertRange(0, 0, 4), 400, "kx1"), Piece(ExpertRange(2, 1, 3), 200, "kx1", "a" * 16))
SAVED = SavedState(SITE, "node", 1.0, 2.0, "wss://site.test/relay", SiteModel("demo", "f" * 64, 4, 8), PIECES)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path / "new" / "state")
    with directory.in_use():
        assert directory.load(SITE) == SavedState(SITE)
        assert directory.read_token() == ""
        directory.save(SAVED)
        directory.save_token("kvs-secret")
        assert directory.load(SITE) == SAVED
        assert directory.read_token() == "kvs-secret"
    assert stat.S_IMODE(directory.token_path.stat().st_mode) == 0o600
    assert "kvs-secret" not in (directory.path / "state.json").read_text()


def test_what_is_fetched_is_to_be_verified_again(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path)
    directory.save(replace(SAVED, pieces=tuple(replace(piece, is_fetched=True) for piece in PIECES)))
    assert directory.load(SITE).pieces == PIECES


def test_a_smaller_budget_keeps_what_fits() -> None:
    assert SAVED.pieces_within(600) == PIECES
    assert SAVED.pieces_within(599) == PIECES[:1]
    assert SAVED.pieces_within(399) == PIECES[1:]


def test_a_token_is_exchanged_when_a_third_of_its_life_is_left() -> None:
    saved = replace(SAVED, since=100.0, expires=400.0)
    assert saved.rotate_in_s("node", 150.0) == 150.0
    assert saved.rotate_in_s("another", 150.0) == math.inf
    assert replace(saved, expires=0.0).rotate_in_s("node", 150.0) == math.inf


def test_one_process_and_one_site_have_a_directory(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path)
    directory.save(SAVED)
    with directory.in_use(), pytest.raises(ConfigError, match="in use by another worker"), directory.in_use():
        pass
    with pytest.raises(ConfigError, match=r"belongs to https://site\.test, not to https://other\.test"):
        directory.load("https://other.test")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 2}', "\xff"])
def test_what_cannot_be_read_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"state\.json cannot be read"):
        StateDirectory(tmp_path).load(SITE)


def test_the_node_of_a_given_token_is_in_it() -> None:
    token = "kvs-0123456789abcdef-" + "x" * 43
    assert given_credentials(token) == NodeCredentials("0123456789abcdef", token)
    with pytest.raises(ConfigError, match="must begin with kvs-") as refused:
        given_credentials("secret")
    assert "secret" not in str(refused.value)


def test_the_command_line_with_a_budget(tmp_path: Path) -> None:
    words = ["join", SITE + "/", "--budget", "2GiB", "--invite", "code", "--state-dir", str(tmp_path), "--threads=2"]
    config = parse_command(words)
    assert isinstance(config, AgentConfig)
    assert (config.site, config.budget_bytes, config.state_dir) == (SITE, 2 << 30, tmp_path)
    assert config.room_bytes == (2 << 30) - 150_000_000
    assert (config.identity.invite, config.kernel.n_threads, config.identity.token) == ("code", 2, "")
    assert "code" not in repr(config)
    assert "region" not in config.facts
    said = parse_command([*words, "--region", " West Java "])
    assert isinstance(said, AgentConfig)
    assert said.facts["region"] == "West Java"
    assert default_directory("https://site.test:8000").parts[-2:] == ("kvasir", "site.test_8000")


def test_the_form_with_a_slice_is_as_before(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    words = ["join", "wss://relay.test/relay", "--slice", str(tmp_path / "a.gguf"), "--token", "t"]
    assert isinstance(parse_command(words), WorkerConfig)
    assert parse_arguments(words).relay == RelayAccess("wss://relay.test/relay", "t")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["join", "wss://relay.test/relay", "--budget", "2GiB"], "site address"),
        (["join", "https://user:pw@site.test", "--budget", "2GiB"], "no user, password"),
        (["join", SITE, "--budget", "2 pounds"], "is not a size"),
        (["join", SITE, "--budget", "2GiB", "--region", "x" * 41], "has 41 characters; at most 40"),
        (["join", SITE, "--budget", "150MB"], "too small"),
        (["join", SITE, "--budget", "2GiB", "--relay", "https://relay.test"], "relay address"),
        (["join", SITE, "--budget", "2GiB", "--threads", "0"], "--threads"),
    ],
)
def test_what_cannot_be_is_named(words: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_command(words)


@pytest.mark.parametrize("words", [[], ["--budget", "2GiB", "--slice", "a.gguf"], ["--slice", "a.gguf"]])
def test_a_budget_or_a_slice_with_its_token(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse_command(["join", SITE, *words])
