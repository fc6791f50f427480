/**
 * The page's half of `page_speed.py`: what an expert costs per row in this browser, and a redraw of the heatmap.
 *
 * Times are wall times, medians; a page has no CPU time. Every call gives its outputs' hash, to be compared.
 */

import { createGpuKernel } from "/static/kvasir/kernels/gpu/kernel.js";
import { packRows } from "/static/kvasir/kernels/kx1_format.js";
import { plainRows } from "/static/kvasir/kernels/kx1_inputs.js";
import { madeExpert, sha256 } from "/static/kvasir/kernels/selftest.js";
import { createWasmKernel } from "/static/kvasir/kernels/wasm/kernel.js";

/** @import { ExpertKernel } from "../../frontend/static/kvasir/kernels/kernel_types.js" */

const TYPES = /** @type {const} */ ({ gate: "Q4_K", up: "Q4_K", down: "Q6_K" });
const MAX_BYTES = 256 * 1024 * 1024;
const WARM_UP_MS = 500; // engines compile WebAssembly twice, the second time in the background
const MAKERS = {
    wasm: () => createWasmKernel({ nThreads: 1, maxBytes: MAX_BYTES }),
    webgpu: () => createGpuKernel({ software: true, maxBytes: MAX_BYTES }),
};

/**
 * Microseconds per expert-row by number of rows, and the hash of each call's outputs: run i of rows 0 to n - 1 is by
 * expert i modulo `nExperts`.
 *
 * @param {{backend: "wasm" | "webgpu", dModel: number, dFf: number, nExperts: number, runs: Record<string, number>}} wanted
 */
export async function measureKernel({ backend, dModel, dFf, nExperts, runs }) {
    const kernel = await MAKERS[backend]();
    for (let e = 0; e < nExperts; e++) {
        await kernel.load(String(e), madeExpert(TYPES, { dModel, dFf }, 100 * e, "plain"));
    }
    /** @type {Record<string, number>} */
    const usPerRow = {};
    /** @type {Record<string, string[]>} */
    const hashes = {};
    for (const [rows, nRuns] of Object.entries(runs)) {
        const timed = await timeRows(kernel, { nRows: Number(rows), dModel, nExperts, nRuns });
        usPerRow[rows] = timed.us / Number(rows);
        hashes[rows] = timed.hashes;
    }
    const { description } = kernel;
    kernel.close();
    return { description, usPerRow, hashes };
}

/**
 * @param {ExpertKernel} kernel
 * @param {{nRows: number, dModel: number, nExperts: number, nRuns: number}} wanted
 */
async function timeRows(kernel, { nRows, dModel, nExperts, nRuns }) {
    const rows = packRows(plainRows(nRows, dModel, 1), dModel);
    const pairRows = Uint32Array.from({ length: nRows }, (_, row) => row);
    const [times, hashes] = [[], []];
    const warm = performance.now() + WARM_UP_MS;
    do await kernel.compute({ rows, nRows, dModel, pairRows, pairKeys: Array.from(pairRows, () => "0") });
    while (performance.now() < warm);
    for (let run = 0; run <= nRuns; run++) {
        const pairKeys = Array.from(pairRows, () => String(run % nExperts));
        const start = performance.now();
        const outputs = await kernel.compute({ rows, nRows, dModel, pairRows, pairKeys });
        times.push(1000 * (performance.now() - start));
        hashes.push(await sha256(new Uint32Array(outputs.buffer)));
    }
    return { us: median(times.slice(1)), hashes };
}

/** Names of the golden vectors that WebAssembly and the GPU miss here: all of them, and the experts of full shape. */
export async function missedVectors() {
    const [wasm, gpu] = [await import("/wasm_checks.js"), await import("/gpu_checks.js")];
    const missed = Object.entries(await wasm.vectors()).flatMap(([build, { differing }]) =>
        differing.map((name) => `${build} ${name}`),
    );
    for (const [name, differences] of Object.entries(await gpu.golden()))
        if (differences.some((n) => n > 0)) missed.push(`webgpu ${name}`);
    return [...missed, ...(await gpu.fullShape()).map((name) => `webgpu ${name}`)];
}

/**
 * Milliseconds of a redraw with other colours, with the pixels on the canvas at the end.
 *
 * @param {{nLayer: number, nExpert: number, nRuns: number}} wanted
 */
export async function measureHeatmap({ nLayer, nExpert, nRuns }) {
    const { Heatmap } = await import("/static/kvasir/pages/dashboard/heatmap.js");
    const canvas = document.createElement("canvas");
    canvas.width = 1280;
    canvas.height = 480;
    document.body.append(canvas);
    const heatmap = new Heatmap(canvas);
    const times = [];
    for (let run = 0; run <= nRuns; run++) {
        const pixels = Uint32Array.from(
            { length: nLayer * nExpert },
            (_, cell) => 0xff000000 | ((cell * 2654435761 + run) >>> 8),
        );
        const start = performance.now();
        heatmap.show(nLayer, nExpert, pixels);
        canvas.getContext("2d")?.getImageData(0, 0, 1, 1);
        times.push(performance.now() - start);
    }
    canvas.remove();
    return median(times.slice(1));
}

/** @param {number[]} values */
function median(values) {
    const sorted = [...values].sort((a, b) => a - b);
    return sorted[Math.floor(sorted.length / 2)];
}
