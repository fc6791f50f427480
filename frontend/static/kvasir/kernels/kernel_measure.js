/**
 * How fast a kernel is at messages of several sizes: what `kernel_choice.js` decides by.
 *
 * Times are the wall's, of whole calls, as a backbone waits for them. Experts are made, not real; all are unloaded.
 */

import { packedRowBytes } from "./kx1_format.js";
import { plainRows } from "./kx1_inputs.js";
import { packRows } from "./kx1_pack.js";
import { madeExpert } from "./selftest.js";

/** @import { ComputeCall, ExpertKernel, ExpertWeights } from "./kernel_types.js" */

/** Pairs of a message: one row of one expert; a token's; a batch's. */
export const MEASURED_PAIRS = /** @type {const} */ ([1, 8, 64]);

const N_EXPERTS = 8;
const ROUNDS = 3;
const WARM_UP_MS = 50;

/**
 * Milliseconds of a call of each number of pairs.
 *
 * @typedef {Record<number, number>} Times
 */

/**
 * @param {ExpertKernel} kernel with room for eight experts, else fewer are loaded
 * @param {{dModel: number, dFf: number}} shape
 * @returns {Promise<Times>}
 */
export async function measureKernel(kernel, shape) {
    const weights = madeExpert({ gate: "Q4_K", up: "Q4_K", down: "Q6_K" }, shape, 1, "plain");
    const rows = packRows(plainRows(N_EXPERTS, shape.dModel, 2), shape.dModel);
    const keys = await loadCopies(kernel, weights);
    try {
        /** @type {Times} */
        const times = {};
        for (const n of MEASURED_PAIRS) times[n] = await timeCall(kernel, callOf(n, rows, shape.dModel, keys));
        return times;
    } finally {
        for (const key of keys) kernel.unload(key);
    }
}

/**
 * The same expert under as many keys as there is room for, eight at most and one at least.
 *
 * @param {ExpertKernel} kernel
 * @param {ExpertWeights} weights
 * @returns {Promise<string[]>}
 */
async function loadCopies(kernel, weights) {
    const nBytes = weights.gate.length + weights.up.length + weights.down.length;
    const room = Math.floor((kernel.capacityBytes - kernel.loadedBytes) / (2 * nBytes));
    const keys = Array.from({ length: Math.max(1, Math.min(N_EXPERTS, room)) }, (_, i) => `measured ${i}`);
    for (const key of keys) await kernel.load(key, weights);
    return keys;
}

/**
 * @param {number} nPairs
 * @param {Uint8Array} rows eight of them
 * @param {number} dModel
 * @param {string[]} keys
 * @returns {ComputeCall}
 */
function callOf(nPairs, rows, dModel, keys) {
    const nRows = rows.length / packedRowBytes(dModel);
    const pairRows = Uint32Array.from({ length: nPairs }, (_, pair) => Math.floor(pair / keys.length) % nRows);
    const pairKeys = Array.from(pairRows, (_, pair) => keys[pair % keys.length]);
    return { rows, nRows, dModel, pairRows, pairKeys };
}

/**
 * The best of some rounds, once the engine or driver is warm.
 *
 * @param {ExpertKernel} kernel
 * @param {ComputeCall} call
 */
async function timeCall(kernel, call) {
    const warm = performance.now() + WARM_UP_MS;
    do await kernel.compute(call);
    while (performance.now() < warm);
    let best = Infinity;
    for (let round = 0; round < ROUNDS; round++) {
        const start = performance.now();
        await kernel.compute(call);
        best = Math.min(best, performance.now() - start);
    }
    return best;
}
