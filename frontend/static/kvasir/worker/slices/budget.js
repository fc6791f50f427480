/**
 * Memory budgets of a worker: whether experts fit, checked before anything is downloaded, and how much a tab may offer.
 *
 *     bytes needed = WORKER_OVERHEAD_BYTES + sum over the experts of their stored bytes
 *
 * The agent checks with the sizes of an offer, the slice store again with the manifest's exact sizes.
 */

/** @import { ExpertRange } from "../agent/plan_state.js" */
/** @import { BudgetAdvice, DeviceFacts } from "../tab/messages.js" */

/** Memory of the tab itself: scripts, kernels, buffers of the requests in flight. The same as in Python. */
export const WORKER_OVERHEAD_BYTES = 150_000_000;

/** Return the bytes of experts that fit into a budget beside the program itself. @param {number} budgetBytes */
export function roomForExperts(budgetBytes) {
    return Math.max(0, budgetBytes - WORKER_OVERHEAD_BYTES);
}

/**
 * Return the bytes of memory that a worker of these merged ranges takes.
 * @param {readonly ExpertRange[]} ranges @param {(layer: number) => number} expertBytes of one expert of a layer
 */
export function memoryNeeded(ranges, expertBytes) {
    const weights = ranges.reduce((sum, { layer, start, stop }) => sum + (stop - start) * expertBytes(layer), 0);
    return WORKER_OVERHEAD_BYTES + weights;
}

const GIB = 2 ** 30;
const STEP_BYTES = 64 * 2 ** 20; // budgets are rounded down to this
const UNKNOWN_MEMORY_BYTES = 4 * GIB; // if the browser does not report it; phones: half
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

/** Limit a requested budget to the advice. @param {number} bytes @param {BudgetAdvice} advice */
export function boundedBudget(bytes, { leastBytes, mostBytes }) {
    return Math.min(Math.max(bytes, leastBytes), mostBytes);
}

/** @param {number} bytes */
function roundedDown(bytes) {
    return Math.floor(bytes / STEP_BYTES) * STEP_BYTES;
}
