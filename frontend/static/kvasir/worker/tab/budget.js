/**
 * How much memory a tab may offer: a formula from what the browser says of the device, and nothing else.
 * `tab_worker.js` publishes the advice; the visitor chooses within it. Bytes, the program's own share included.
 *
 *     most      = the least of half the memory (a quarter on phones), what the GPU or WebAssembly can hold,
 *                 and half the free disk; each but the first with the program's share on top
 *     suggested = a quarter of the memory (an eighth on phones), at most 4 GiB and at most `most`
 */

import { WORKER_OVERHEAD_BYTES } from "../slices/budget.js";

/** @import { BudgetAdvice, DeviceFacts } from "./messages.js" */

const GIB = 2 ** 30;
const STEP_BYTES = 64 * 2 ** 20; // what is shown is rounded down to this
const UNKNOWN_MEMORY_BYTES = 4 * GIB; // where a browser does not say; phones: half
const SUGGESTED_MOST_BYTES = 4 * GIB;
const WASM_BYTES_A_THREAD = 3 * GIB; // of the 4 GiB that an instance can address
const LEAST_EXPERT_BYTES = 50_000_000; // less than this is not worth a download

/** @param {DeviceFacts} device @returns {BudgetAdvice} */
export function adviseBudget(device) {
    const memory = device.memoryBytes || (device.isMobile ? UNKNOWN_MEMORY_BYTES / 2 : UNKNOWN_MEMORY_BYTES);
    const held = device.hasWebGpu ? device.gpuBytesMost : 0;
    const computed = Math.max(held, device.hasWasmSimd ? device.nThreads * WASM_BYTES_A_THREAD : 0);
    /** @type {[BudgetAdvice["boundBy"], number][]} */
    const bounds = [
        [device.isMobile ? "mobile" : "memory", memory / (device.isMobile ? 4 : 2)],
        ["gpu", computed + WORKER_OVERHEAD_BYTES],
    ];
    if (device.diskFreeBytes > 0) bounds.push(["disk", device.diskFreeBytes / 2 + WORKER_OVERHEAD_BYTES]);
    const [boundBy, bytes] = bounds.reduce((least, bound) => (bound[1] < least[1] ? bound : least));
    const mostBytes = roundedDown(bytes);
    const leastBytes = WORKER_OVERHEAD_BYTES + LEAST_EXPERT_BYTES;
    const wanted = Math.min(memory / (device.isMobile ? 8 : 4), SUGGESTED_MOST_BYTES);
    const suggestedBytes = Math.min(mostBytes, Math.max(leastBytes, roundedDown(wanted)));
    return { suggestedBytes, leastBytes, mostBytes, boundBy };
}

/** A budget that was asked for, within the advice. @param {number} bytes @param {BudgetAdvice} advice */
export function boundedBudget(bytes, { leastBytes, mostBytes }) {
    return Math.min(Math.max(bytes, leastBytes), mostBytes);
}

/** @param {number} bytes */
function roundedDown(bytes) {
    return Math.floor(bytes / STEP_BYTES) * STEP_BYTES;
}
