/**
 * The page's half of `browser_speed.py`: what an expert costs per row in this browser, and a redraw of the heatmap.
 *
 * Times are wall times, medians; a page has no CPU time. Every kernel gives its outputs' hash, to be compared.
 */

import { createGpuKernel } from "/static/kvasir/kernels/gpu_kernel.js";
import { plainRows } from "/static/kvasir/kernels/kx1_inputs.js";
import { packRows } from "/static/kvasir/kernels/kx1_pack.js";
import { madeExpert, sha256 } from "/static/kvasir/kernels/selftest.js";
import { createWasmKernel } from "/static/kvasir/kernels/wasm_kernel.js";

/** @import { ExpertKernel } from "../frontend/static/kvasir/kernels/kernel_types.js" */

const TYPES = /** @type {const} */ ({ gate: "Q4_K", up: "Q4_K", down: "Q6_K" });
const MAX_BYTES = 256 * 1024 * 1024;
const WARM_UP_MS = 500; // engines compile WebAssembly twice, the second time in the background
const MAKERS = {
    wasm: () => createWasmKernel({ nThreads: 1, maxBytes: MAX_BYTES }),
    webgpu: () => createGpuKernel({ software: true, maxBytes: MAX_BYTES }),
};

/**
 * Microseconds per expert-row by number of rows, and the hash of the last outputs.
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
    let hash = "";
    for (const [rows, nRuns] of Object.entries(runs)) {
        const { us, outputs } = await timeRows(kernel, { nRows: Number(rows), dModel, nExperts, nRuns });
        usPerRow[rows] = us / Number(rows);
        hash = await sha256(new Uint32Array(outputs.buffer));
    }
    const { description } = kernel;
    kernel.close();
    return { description, usPerRow, hash };
}

/**
 * @param {ExpertKernel} kernel
 * @param {{nRows: number, dModel: number, nExperts: number, nRuns: number}} wanted
 */
async function timeRows(kernel, { nRows, dModel, nExperts, nRuns }) {
    const rows = packRows(plainRows(nRows, dModel, 1), dModel);
    const pairRows = Uint32Array.from({ length: nRows }, (_, row) => row);
    const times = [];
    let outputs = new Float32Array(0);
    const warm = performance.now() + WARM_UP_MS;
    do await kernel.compute({ rows, nRows, dModel, pairRows, pairKeys: Array.from(pairRows, () => "0") });
    while (performance.now() < warm);
    for (let run = 0; run <= nRuns; run++) {
        const pairKeys = Array.from(pairRows, () => String(run % nExperts));
        const start = performance.now();
        outputs = await kernel.compute({ rows, nRows, dModel, pairRows, pairKeys });
        times.push(1000 * (performance.now() - start));
    }
    return { us: median(times.slice(1)), outputs };
}

/**
 * Milliseconds of a redraw with other colours, with the pixels on the canvas at the end.
 *
 * @param {{nLayer: number, nExpert: number, nRuns: number}} wanted
 */
export async function measureHeatmap({ nLayer, nExpert, nRuns }) {
    const { Heatmap } = await import("/static/kvasir/pages/dashboard_heatmap.js");
    const canvas = document.createElement("canvas");
    canvas.width = 1280;
    canvas.height = 480;
    document.body.append(canvas);
    const heatmap = new Heatmap(canvas);
    const times = [];
    for (let run = 0; run <= nRuns; run++) {
        const pixels = Uint32Array.from({ length: nLayer * nExpert }, (_, cell) => 0xff000000 | ((cell * 2654435761 + run) >>> 8));
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
