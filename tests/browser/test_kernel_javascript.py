"""KX1 in WebAssembly, in node: the golden vectors, the kernel's threads, the choice of a kernel, and its builds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.browser.node_tests import run_node_tests
from tools.build_wasm import BUILDS, RECORD, WASM_DIR, build_all, source_digest


def test_webassembly_kernel_in_node() -> None:
    run_node_tests("wasm_kernel.test.mjs", 19)


@pytest.mark.parametrize("compiler", ["--liftoff-only", "--no-liftoff"])
def test_both_compilers_of_the_engine_give_the_same_bits(compiler: str) -> None:
    run_node_tests("wasm_kernel.test.mjs", 2 * len(BUILDS), only="golden vector|self-test through", flags=[compiler])


@pytest.mark.long
def test_choice_of_a_kernel_in_node() -> None:
    run_node_tests("kernel_choice.test.mjs", 13)


def test_checks_of_a_kernel_that_is_in_use_in_node() -> None:
    run_node_tests("checked_kernel.test.mjs", 8)


def test_builds_in_the_repository_are_those_of_the_sources() -> None:
    record = json.loads((WASM_DIR / RECORD).read_text())
    digests = {f"{name}.wasm": hashlib.sha256((WASM_DIR / f"{name}.wasm").read_bytes()).hexdigest() for name in BUILDS}
    assert record["files"] == digests
    assert record["sources"] == source_digest(), "csrc/ changed: run `python -m tools.build_wasm`"


@pytest.mark.long
def test_rebuilding_gives_the_same_behaviour(tmp_path: Path) -> None:
    made = build_all(tmp_path)
    assert sorted(path.name for path in made) == sorted(path.name for path in WASM_DIR.glob("*.wasm"))
    run_node_tests(
        "wasm_kernel.test.mjs", 2 * len(BUILDS), only="golden vector|self-test through",
        environment={"WASM_BUILDS": str(tmp_path)},
    )  # fmt: skip
