"""`manage.py generate` and `manage.py demo` as a person runs them: real processes, output read from the terminal."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from kvasir.worker.serving.holdings import open_holdings
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.swarm.swarm import cut, serving

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "kvasir-demo-moe.q4_k_m.gguf"


def manage(*arguments: str, deadline_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=deadline_s, check=False,
    )  # fmt: skip


def generate_here(*arguments: str) -> tuple[str, str]:
    """What `generate` writes to both outputs, in this process: a new one would import torch first."""
    out, err = io.StringIO(), io.StringIO()
    call_command("generate", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def lower_half(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A worker with experts 0 to 7 of the demo model's 16."""
    (path,) = cut(MODEL, [(0, 8)], tmp_path_factory.mktemp("slices"))
    with serving([open_holdings(path, "auto", 1)]) as addresses:
        yield addresses[0]


def test_a_text_with_one_worker_is_compared_and_summed_up(lower_half: str) -> None:
    done = manage("generate", "One day", "--worker", lower_half, "--max-tokens", "12", "--seed", "3", "--compare")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("One day")
    assert "12 tokens in" in done.stdout
    assert f"row-experts by {lower_half} " in done.stdout
    assert "no replica" in done.stdout
    assert "kB sent to workers" in done.stdout
    assert "experts by kernel kx1\n" in done.stdout
    assert "identical: all 12 tokens" in done.stdout


def test_the_same_seed_gives_the_same_text_and_another_seed_another() -> None:
    texts = [
        generate_here("One day", "--max-tokens", "20", "--seed", seed)[0].partition("\n20 tokens")[0]
        for seed in ("3", "3", "4")
    ]
    assert texts[0] == texts[1] != texts[2]


def test_the_slow_kernel_is_named() -> None:
    out, _ = generate_here("One day", "--max-tokens", "2", "--kernel", "float")
    assert "experts by kernel float (dequantised, slow" in out


def test_missing_workers_are_an_error_where_they_are_required(lower_half: str) -> None:
    done = manage("generate", "One day", "--worker", lower_half, "--max-tokens", "4", "--require-workers")
    assert done.returncode == 1
    assert "were not computed by workers" in done.stderr


def test_a_worker_that_is_not_there_is_named_and_the_text_comes_anyway() -> None:
    _, err = generate_here("One day", "--worker", "127.0.0.1:9", "--max-tokens", "4")
    assert "worker 127.0.0.1:9 is not used" in err
    assert "cannot be reached" in err


def test_a_worker_with_another_model_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    other = write_tiny(tmp_path / "other.gguf", TinyModel("qwen3moe", "Q4_K"))
    holdings = open_holdings(cut(other, [(0, 4)], tmp_path)[0], "auto", 1)
    with serving([holdings]) as addresses:
        _, err = generate_here("One day", "--worker", addresses[0], "--max-tokens", "4")
    assert "refused" in err
    assert holdings.model_fingerprint in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--worker", "nowhere"), "worker address 'nowhere' is not HOST:PORT"),
        (("--model", "no-such-file.gguf"), "no-such-file.gguf"),
        (("--temperature", "9"), "temperature is 9.0"),
        (("--max-tokens", "0"), "max_tokens is 0"),
        (("--threads", "0"), "threads"),
        (("--deadline", "0"), "deadline is 0 s; it must be above 0"),
        (("--deadline", "3601"), "at most 3600 s"),
        (("--deadline", "nan"), "deadline is nan s"),
    ],
)
def test_bad_options_are_one_clear_sentence(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(CommandError) as raised:
        call_command("generate", "One day", *arguments)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_demo_is_exact_and_leaves_nothing_to_the_fallback() -> None:
    done = manage("demo", "--max-tokens", "24")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "identical: all 24 tokens" in done.stdout
    assert "backbone's own replica 0.0%" in done.stdout
