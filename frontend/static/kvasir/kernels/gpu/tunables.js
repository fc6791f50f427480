/**
 * What is fastest on this device, by a quick measurement: how many invocations share a weight row, and from how many
 * pairs of an expert on tiles pay. No choice changes a bit.
 *
 * Called by `gpu/kernel.js` where nothing is remembered of the device; well below a second on a real GPU.
 */

import { legalPackedRows } from "../kx1_inputs.js";
import { madeExpert } from "../selftest.js";
import { GpuKernel } from "./backend.js";
import { NEVER } from "./programs.js";

/** @import { ExpertWeights } from "../kernel_types.js" */
/** @import { GpuDevice } from "./device.js" */
/** @import { DotVariant, GpuSources, GpuTunables } from "./programs.js" */

const USUAL_SHAPE = { dModel: 2048, dFf: 768 };
const TYPES = /** @type {const} */ ({ gate: "Q4_K", up: "Q4_K", down: "Q4_K" });
const MAX_BYTES = 16 * 1024 * 1024;
const LANES = [4, 16, 8, 2]; // another than the first must be faster by more than the noise
const GAIN = 0.95;
const TILED_FROM = [8, 16, 32];
const N_ROWS = 3; // of legalPackedRows
const N_CALLS = 4;
const KEY = "measured";

/**
 * Measure on an open device.
 *
 * @param {GpuDevice} opened
 * @param {GpuSources} sources
 * @param {DotVariant} dot
 * @param {{dModel: number, dFf: number}} [shape] of the expert that is measured
 * @returns {Promise<GpuTunables>}
 */
export async function measureTunables(opened, sources, dot, shape = USUAL_SHAPE) {
    const weights = madeExpert(TYPES, shape, 1, "plain");
    /** @type {(tunables: GpuTunables, counts: number[]) => Promise<number[]>} */
    const measure = (tunables, counts) => timesOf(opened, sources, { dot, tunables }, weights, counts);
    let best = { lanes: LANES[0], us: Infinity };
    for (const lanes of LANES) {
        const [one, four] = await measure({ lanes, tiledFrom: NEVER }, [1, 4]);
        if (one + four < best.us * GAIN) best = { lanes, us: one + four };
    }
    const { lanes } = best;
    const plain = await measure({ lanes, tiledFrom: NEVER }, TILED_FROM);
    const tiled = await measure({ lanes, tiledFrom: 1 }, TILED_FROM);
    return { lanes, tiledFrom: TILED_FROM.find((_, i) => tiled[i] < plain[i] * GAIN) ?? NEVER };
}

/**
 * Microseconds of a call of each number of pairs, the fastest of a few.
 *
 * @param {GpuDevice} opened
 * @param {GpuSources} sources
 * @param {{dot: DotVariant, tunables: GpuTunables}} build
 * @param {ExpertWeights} weights
 * @param {number[]} counts
 */
async function timesOf(opened, sources, build, weights, counts) {
    const kernel = new GpuKernel(opened, sources, { ...build, maxBytes: MAX_BYTES, nInFlight: 1 });
    try {
        await kernel.compile([TYPES.gate]);
        await kernel.load(KEY, weights);
        const times = [];
        for (const n of counts) times.push(await fastestCall(kernel, weights.dModel, n));
        return times;
    } finally {
        kernel.freeBuffers();
    }
}

/**
 * @param {GpuKernel} kernel
 * @param {number} dModel
 * @param {number} nPairs
 */
async function fastestCall(kernel, dModel, nPairs) {
    const call = {
        rows: legalPackedRows(dModel, 1),
        nRows: N_ROWS,
        dModel,
        pairRows: Uint32Array.from({ length: nPairs }, (_, i) => i % N_ROWS),
        pairKeys: Array.from({ length: nPairs }, () => KEY),
    };
    let fastest = Infinity;
    for (let i = 0; i < N_CALLS; i++) {
        const start = performance.now();
        await kernel.compute(call);
        fastest = Math.min(fastest, 1000 * (performance.now() - start));
    }
    return fastest;
}
