"""The command line of `kvasir-worker join`: addresses, tokens, and nothing that shows a token."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvasir.errors import ConfigError
from kvasir.worker.command_line import parse_arguments, read_token
from kvasir.worker.serving.config import RelayAccess
from kvasir.worker.serving.report import joined_json, joined_text
from tests.unit.fake_experts import fake_holdings

URL = "wss://relay.example.org/relay"


@pytest.fixture
def slice_path(tmp_path: Path) -> Path:
    path = tmp_path / "a.gguf"
    path.touch()
    return path


def test_a_token_comes_from_a_file_or_the_command_line(slice_path: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("  secret\n")
    for option in ("--token=secret", f"--token-file={tmp_path / 'token'}"):
        config = parse_arguments(["join", URL, option, "--slice", str(slice_path), "--threads=2", "--json"])
        assert (config.relay, config.kernel.n_threads, config.json) == (RelayAccess(URL, "secret"), 2, True)
        assert "secret" not in repr(config)


def test_serving_has_neither_relay_nor_token(slice_path: Path) -> None:
    config = parse_arguments(["serve", "--slice", str(slice_path)])
    assert config.relay is None


@pytest.mark.parametrize("url", ["https://relay.example.org", "relay.example.org", "wss://relay.example.org/?token=x"])
def test_addresses_that_cannot_be_are_named(slice_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="relay address"):
        parse_arguments(["join", url, "--token=t", "--slice", str(slice_path)])


@pytest.mark.parametrize("arguments", [[], ["--token=a", "--token-file=b"]])
def test_exactly_one_way_to_give_the_token(slice_path: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["join", URL, "--slice", str(slice_path), *arguments])


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "has 0 words"), (b"two secrets", "has 2 words"), (b"\xff\xfe", "cannot be read")]
)
def test_a_file_without_one_token_is_an_error_that_does_not_show_it(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=reason) as refused:
        read_token(None, path)
    assert "secrets" not in str(refused.value)
    with pytest.raises(ConfigError, match="FileNotFoundError"):
        read_token(None, tmp_path / "missing")


def test_what_it_says_when_it_has_joined() -> None:
    holdings = fake_holdings()
    assert '"event": "joined"' in joined_json(URL, holdings)
    assert joined_text(URL, holdings).startswith(f"joined {URL} with {holdings.n_experts} experts")
