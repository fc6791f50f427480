"""The worker's command line and what it says about itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvasir import kernels
from kvasir.errors import ConfigError
from kvasir.worker.command_line import parse_address, parse_arguments
from kvasir.worker.serving.config import MIB, ClientLimits, KernelChoice, WorkerConfig
from kvasir.worker.serving.kernel_choice import KX1_KEPT_BYTES
from kvasir.worker.serving.report import BASE_BYTES, Listening, ranges_text, stopped_json
from tests.unit.fake_experts import KERNEL, MODEL, FakeExperts, fake_holdings


@pytest.fixture
def slice_path(tmp_path: Path) -> Path:
    path = tmp_path / "a.gguf"
    path.touch()
    return path


def test_it_works(slice_path: Path) -> None:
    config = parse_arguments(["serve", "--slice", str(slice_path)])
    assert config == WorkerConfig(slice_path)
    assert (config.host, config.port) == ("127.0.0.1", 7070)


def test_every_option_is_taken(slice_path: Path) -> None:
    limits = ["--threads=3", "--max-clients=2", "--max-inflight-mb=16"]
    config = parse_arguments(
        ["serve", "--slice", str(slice_path), "--listen", "[::1]:0", "--kernel", "float", "--json", *limits]
    )
    assert config == WorkerConfig(
        slice_path, "::1", 0, kernel=KernelChoice("float", 3), limits=ClientLimits(2, 16), json=True
    )
    assert config.limits.max_inflight_bytes == 16 * MIB


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--listen", "7070"),
        ("--listen", "host:"),
        ("--listen", ":7070"),
        ("--listen", "host:65536"),
        ("--listen", "host:-1"),
        ("--listen", "host:²"),
        ("--threads", "0"),
        ("--max-clients", "0"),
        ("--max-inflight-mb", "15"),
        ("--max-inflight-mb", "4096"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_option(slice_path: Path, option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=option) as caught:
        parse_arguments(["serve", "--slice", str(slice_path), f"{option}={value}"])
    assert value in str(caught.value)


def test_a_missing_slice_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.gguf.*kvasir slice"):
        parse_arguments(["serve", "--slice", str(tmp_path / "none.gguf")])


def test_help_teaches_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["serve", "--help"]):
        with pytest.raises(SystemExit) as caught:
            parse_arguments(words)
        assert caught.value.code == 0
        assert "kvasir-worker serve --slice slice.gguf --listen 127.0.0.1:7070" in capsys.readouterr().out


def test_addresses() -> None:
    assert parse_address("0.0.0.0:0") == ("0.0.0.0", 0)  # noqa: S104
    assert parse_address("[::]:7070") == ("::", 7070)


def test_a_worker_says_what_it_serves_and_what_memory_it_takes() -> None:
    config = WorkerConfig(Path("s.gguf"), limits=ClientLimits(2, 16))
    listening = Listening.of(config, fake_holdings(FakeExperts(0), FakeExperts(1)), "127.0.0.1", 4711)
    assert listening.memory_bytes_most - listening.memory_bytes == 2 * 16 * MIB
    said = json.loads(listening.as_json())
    assert (said["event"], said["port"], said["kernel_fingerprint"]) == ("listening", 4711, KERNEL)
    text = listening.as_text()
    for fact in (
        "s.gguf",
        "16 experts",
        "layers 0 to 1: experts 0 to 7",
        MODEL,
        KERNEL,
        f"{BASE_BYTES // MIB} MiB for the program",
    ):
        assert fact in text
    assert text.endswith("listening on 127.0.0.1:4711")
    assert json.loads(stopped_json("x")) == {"event": "stopped", "reason": "x"}


def test_ranges_are_told_in_short() -> None:
    ranges = [(0, 0, 8), (1, 0, 8), (2, 4, 5), (2, 7, 9), (4, 0, 8), (5, 0, 8)]
    text = "layers 0 to 1: experts 0 to 7, layer 2: experts 4 to 4 and 7 to 8, layers 4 to 5: experts 0 to 7"
    assert ranges_text(ranges) == text


def test_the_stated_working_memory_is_the_librarys() -> None:
    scratch = (Path(kernels.__file__).parent / "csrc" / "scratch.h").read_text()
    (mib,) = re.findall(r"#define SCRATCH_KEPT_BYTES \(\(size_t\)(\d+) << 20\)", scratch)
    assert int(mib) * MIB == KX1_KEPT_BYTES
