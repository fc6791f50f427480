"""KX1 on GPUs and in browsers: whether the bits are the same everywhere, and what an expert costs per row.

`python -m benchmarks.bench_webgpu [--json] [--quick] [--only native wasm browser site]`. Native: WGSL through wgpu on
the software adapter, and on a real GPU, against torch, where there is one. wasm: WebAssembly in node. browser: both in
Chromium. site: pages of the running service. One expert of 3072 x 1024, gate and up Q4_K, down Q6_K.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from benchmarks.machine import describe_commit, describe_machine

QUICK_SHAPE = (512, 256)
PARTS = ("native", "wasm", "browser", "site")
NO_GPU = "not measured: this machine has no GPU"
Keys = dict[str, object]


def main() -> None:
    """Measure what is asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--quick", action="store_true", help="a smoke run: figures mean nothing")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help="only these parts")
    options = parser.parse_args()
    measures = {"native": native_keys, "wasm": wasm_keys, "browser": browser_keys, "site": site_keys}
    keys = merged({name: measures[name](options.quick) for name in options.only})
    keys |= {"machine": describe_machine(), "commit": describe_commit()}
    print(json.dumps(keys) if options.json else "\n".join(f"{name:22} {value}" for name, value in keys.items()))


def merged(parts: Mapping[str, Keys]) -> Keys:
    """The keys of all parts; those that several have, dictionaries and `bits_equal`, become one."""
    keys: Keys = {}
    for part in parts.values():
        for name, value in part.items():
            mine = keys.get(name)
            if isinstance(mine, dict) and isinstance(value, dict):
                keys[name] = {**mine, **value}
            elif isinstance(mine, bool) and isinstance(value, bool):
                keys[name] = mine and value
            else:
                keys[name] = value
    return keys


def rounded(figures: Mapping[int, float], digits: int = 1) -> dict[str, float]:
    """Figures by number of rows, as they are published."""
    return {str(n): round(value, digits) for n, value in figures.items()}


def native_keys(quick: bool) -> Keys:
    """WGSL through wgpu."""
    from benchmarks.browser.gpu_speed import GPU_RUNS, SHAPE, SOFTWARE_RUNS, measure_gpu, measure_software

    shape = QUICK_SHAPE if quick else SHAPE
    software = measure_software(shape, dict.fromkeys(SOFTWARE_RUNS, 1) if quick else SOFTWARE_RUNS)
    gpu = measure_gpu(shape, dict.fromkeys(GPU_RUNS, 2) if quick else GPU_RUNS)
    keys: Keys = {
        "bits_equal": software.bits_equal and (gpu is None or gpu.bits_equal),
        "us_per_expert_row": {"lavapipe": rounded(software.kx1)},
        "ratio_vs_f32_wgsl": {"lavapipe": rounded(software.ratio_vs_f32, 2)},
        "gpu_rows_per_s": NO_GPU,
        "devices": {"lavapipe": software.device},
    }
    if gpu is not None:
        keys["us_per_expert_row"] = {"lavapipe": rounded(software.kx1), "gpu": rounded(gpu.kx1)}
        keys["ratio_vs_f32_wgsl"] = {
            "lavapipe": rounded(software.ratio_vs_f32, 2),
            "gpu": rounded(gpu.ratio_vs_f32, 2),
        }
        keys["gpu_rows_per_s"] = {name: rounded(rates, 0) for name, rates in gpu.rows_per_s.items()}
        keys["devices"] = {"lavapipe": software.device, "gpu": gpu.device}
    return keys


def wasm_keys(quick: bool) -> Keys:
    """WebAssembly in node, beside AVX2."""
    from benchmarks.browser.wasm_speed import N_EXPERTS, NATIVE, RUNS, SHAPE, measure_wasm

    # A small expert takes less than node's clock can tell, so a quick run has fewer rounds only.
    speed = measure_wasm(dict.fromkeys(RUNS, 2), SHAPE, 8) if quick else measure_wasm(RUNS, SHAPE, N_EXPERTS)
    best = speed.best_build
    return {
        "bits_equal": speed.bits_equal,
        "us_per_expert_row": {"wasm_node": rounded(speed.us_per_row[best])},
        "ratio_wasm_vs_avx2": {
            name: rounded(speed.ratio_vs_avx2(name), 2) for name in speed.us_per_row if name != NATIVE
        },
        "devices": {"wasm_node": best},
    }


def browser_keys(quick: bool) -> Keys:
    """WebAssembly, the software GPU and the heatmap in Chromium."""
    from benchmarks.browser.page_speed import N_EXPERTS, RUNS, SHAPE, measure_browser_speed

    runs = {name: dict.fromkeys(counts, 1) for name, counts in RUNS.items()} if quick else RUNS
    speed = measure_browser_speed(runs, QUICK_SHAPE if quick else SHAPE, 2 if quick else N_EXPERTS, not quick)
    return {
        "bits_equal": speed.bits_equal,
        "us_per_expert_row": {f"{name}_chromium": rounded(us) for name, us in speed.us_per_row.items()},
        "devices": {f"{name}_chromium": told for name, told in speed.descriptions.items()},
        "heatmap_ms": round(speed.heatmap_ms, 2),
    }


def site_keys(_quick: bool) -> Keys:
    """First loads of pages and answers of a contributing tab, of a service that runs."""
    from benchmarks.browser.site import measure_browser_site

    site = measure_browser_site()
    return {
        "first_load_kb": {page: round(kb, 1) for page, kb in site.first_load_kb.items()},
        "round_trip_ms": {backend: round(ms, 1) for backend, ms in site.round_trip_ms.items()},
    }


if __name__ == "__main__":
    main()
