"""KX1 in WebAssembly in Chromium, under the site's policy: golden vectors, threads, and the choice of a kernel."""

from __future__ import annotations

from typing import Any

from kvasir.kernels.registry import kernel_named
from tests.browser.chromium import Chromium, browse
from tools.build_wasm import BUILDS

CHECK = (
    "async ([name, place]) => { const c = await import('/wasm_checks.js'); return place ? c[place](name) : c[name](); }"
)


def check(static_url: str, name: str, place: str = "", forgiven: tuple[str, ...] = ()) -> Any:
    """What one of the checks of pages/wasm_checks.js tells."""

    async def scenario(browser: Chromium) -> Any:
        page = await browser.open(f"{static_url}/blank.html")
        return await page.evaluate(CHECK, [name, place])

    return browse(scenario, forgiven=forgiven)


def test_every_build_meets_every_golden_vector(static_url: str) -> None:
    assert check(static_url, "vectors") == {name: {"nCases": 54, "differing": []} for name in BUILDS}


def test_threads_inside_a_worker_pass_the_self_test_and_compute_the_golden_experts(static_url: str) -> None:
    told = check(static_url, "threads", "inWorker")
    assert told == {"fingerprint": kernel_named("kx1").fingerprint, "nExperts": 10, "differing": []}


def test_webassembly_is_chosen_in_a_worker_and_remembered(static_url: str) -> None:
    assert check(static_url, "choice", "inWorker") == {"backend": "wasm", "isSame": True, "isKept": True}


def test_a_thread_that_cannot_start_is_a_lost_kernel(static_url: str) -> None:
    told = check(static_url, "brokenThreads", forgiven=("no_such_worker", "404"))
    assert told.startswith("lost: ")
