"""The GPU kernel in Chromium, on its software adapter: KX1's bits, many calls at once, memory, refusals, a crash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.browser_thread import SharedPage, shared_page
from tests.browser.chromium import Chromium, browse, wait_until

SHADERS = Path(__file__).parents[2] / "kvasir/kernels/wgsl"
SLOW_S = 240.0  # compiling shaders on a loaded machine


@pytest.fixture(scope="module")
def page(static_url: str) -> Iterator[SharedPage]:
    with shared_page(f"{static_url}/blank.html") as shared:
        yield shared


def check(page: SharedPage, name: str) -> Any:
    """What `gpu_checks.js` finds."""
    return page.evaluate(f"import('/gpu_checks.js').then((checks) => checks.{name}())", seconds=SLOW_S)


def test_it_proves_itself_and_says_what_it_is(page: SharedPage) -> None:
    said = check(page, "describe")
    assert said.pop("description").startswith("google swiftshader, dot_packed")
    expected = {"backend": "webgpu", "name": "kx1", "isRight": True, "capacityBytes": 16 << 20, "loadedBytes": 0}
    assert said == expected


def test_golden_experts_of_all_types(page: SharedPage) -> None:
    found = check(page, "golden")
    assert len(found) == 10
    assert found == {key: [0, 0] for key in found}


def test_experts_of_full_shape(page: SharedPage) -> None:
    assert check(page, "fullShape") == []


def test_calls_under_way_do_not_mix(page: SharedPage) -> None:
    assert check(page, "underWay") == [0] * 8


def test_an_expert_that_is_unloaded_serves_the_call_under_way_and_its_memory_is_given_back(page: SharedPage) -> None:
    assert check(page, "unloadUnderWay") == [0, 0, 0, 0]


def test_what_it_refuses(page: SharedPage) -> None:
    said = check(page, "refusals")
    assert said.pop("after") == "0"
    assert said.pop("none") == "0"
    wanted = {
        "again": "expert there is loaded already",
        "scale": "down: a scale is infinite or NaN",
        "type": "up is Q4_0; KX1 computes Q4_K, Q5_K, Q6_K, Q8_0",
        "short": "up has 73724 bytes; 256 x 512 of Q4_K has 73728",
        "key": "expert nowhere is not loaded",
        "row": "row number 23 does not exist",
        "code": "row 0 holds code -128",
        "width": "rows have 256 values; expert there takes 512",
    }
    assert set(said) == set(wanted)
    assert {name: text for name, text in wanted.items() if f"KernelError: {text}" not in said[name]} == {}


def test_a_full_memory_says_so_and_loses_nothing(page: SharedPage) -> None:
    found = check(page, "memory")
    n, size = found.pop("n"), found.pop("bytes")
    assert n == found.pop("capacity") // (-(-size // 256) * 256)
    assert found.pop("needed") >= size > found.pop("available")
    assert found.pop("loaded") == n * size
    assert found == {"name": "KernelMemoryError", "last": 0, "again": 0, "left": 0, "reserved": 0}


def test_the_same_bits_as_webassembly_in_the_same_tab(page: SharedPage) -> None:
    found = check(page, "sameAsWasm")
    assert len(found) == 12
    assert found == dict.fromkeys(found, 0)


@pytest.mark.long
def test_webassembly_checks_it_with_fresh_numbers(page: SharedPage) -> None:
    said = page.evaluate("import('/fresh_checks.js').then((checks) => checks.checkGpu())", seconds=SLOW_S)
    differs = (
        "the kernel gives other bits than WebAssembly for fresh numbers (seed 123456789, Q5_K Q5_K Q5_K, value 1000)"
    )
    assert said == ["right", f"KernelError: {differs}", 0]


@pytest.mark.long
def test_programs_for_many_pairs_without_packed_products_and_cut_into_small_submissions(page: SharedPage) -> None:
    found = check(page, "tiled")
    assert len(found) == 4
    assert found == {key: [0, 0, 0] for key in found}


@pytest.mark.long
def test_a_measurement_chooses_what_the_shaders_have(page: SharedPage) -> None:
    chosen = check(page, "measured")
    assert chosen["lanes"] in {2, 4, 8, 16}
    assert chosen["tiledFrom"] in {8, 16, 32, 2**30}


def test_a_software_adapter_is_refused_without_the_switch(page: SharedPage) -> None:
    said = check(page, "withoutSwitch")
    assert said == "GpuUnavailableError: google swiftshader is a software adapter; WebAssembly is faster"


@pytest.mark.long
def test_a_crash_fails_calls_at_once_and_a_new_kernel_computes(static_url: str) -> None:
    async def scenario(browser: Chromium) -> None:
        page = await browser.open(f"{static_url}/blank.html")
        await page.evaluate("import('/gpu_checks.js').then((checks) => checks.beginCalls())")
        await browser.crash_gpu()
        said = await wait_until(page, "cut.said")
        assert [text for text in said if not text.startswith("KernelLostError: ")] == []
        assert await wait_until(page, "cut.lost")
        after = await page.evaluate("import('/gpu_checks.js').then((checks) => checks.afterCrash())")
        assert [text.split(":")[0] for text in after["said"]] == ["KernelLostError"] * 2
        assert (after["tunables"], after["differences"]) == ({"lanes": 4, "tiledFrom": 2**30}, [0, 0])

    browse(scenario, seconds=SLOW_S)


def described_with_fault(static_url: str, name: str, right: str, wrong: str) -> str:
    """What a kernel says when one shader file computes something else."""

    async def scenario(browser: Chromium) -> str:
        source = (SHADERS / name).read_text()
        assert right in source
        faulty = source.replace(right, wrong)
        await browser.context.route(f"**/{name}", lambda route: route.fulfill(body=faulty, content_type="text/wgsl"))
        page = await browser.open(f"{static_url}/blank.html")
        ask = "import('/gpu_checks.js').then((checks) => checks.describeOrRefuse())"
        return str(await page.evaluate(ask))

    return browse(scenario, seconds=SLOW_S)


@pytest.mark.long
def test_a_device_that_miscomputes_packed_products_is_used_without_them(static_url: str) -> None:
    said = described_with_fault(static_url, "dot_packed.wgsl", "dot4I8Packed(", "1 + dot4I8Packed(")
    assert said.startswith("google swiftshader, dot_plain, ")


@pytest.mark.long
def test_a_device_that_miscomputes_is_refused_with_the_digest_that_differs(static_url: str) -> None:
    said = described_with_fault(static_url, "silu.wgsl", "378194u", "370000u")
    assert said.startswith("KernelError: the kernel failed its self-test: outputs of the first expert have digest ")


@pytest.mark.parametrize("quant_type", ["Q4_K", "Q5_K", "Q6_K", "Q8_0"])
def test_golden_matrices(page: SharedPage, quant_type: str) -> None:
    ask = f"import('/gpu_matmul.js').then((matmul) => matmul.checkMatrices('{quant_type}'))"
    assert page.evaluate(ask, seconds=SLOW_S) == {"wrong": [], "n": 8}
