/**
 * Whether experts fit into a worker's memory, asked before anything is downloaded. Twin of
 * what kvasir/worker/slices/store.py checks:
 *
 *     bytes needed = WORKER_OVERHEAD_BYTES + sum over the experts of their stored bytes
 *
 * The agent asks with what an offer says of its layers; the slice store asks again with the manifest's true sizes.
 */

/** @import { ExpertRange } from "../agent/plan_state.js" */

/** What the tab itself takes: scripts, kernels, buffers of the requests in flight. The same as kvasir/slicing/budget.py's. */
export const WORKER_OVERHEAD_BYTES = 150_000_000;

/** Bytes of experts that fit into a budget beside the program itself. @param {number} budgetBytes */
export function roomForExperts(budgetBytes) {
    return Math.max(0, budgetBytes - WORKER_OVERHEAD_BYTES);
}

/**
 * Bytes of memory that a worker of these merged ranges takes.
 * @param {readonly ExpertRange[]} ranges @param {(layer: number) => number} expertBytes of one expert of a layer
 */
export function memoryNeeded(ranges, expertBytes) {
    const weights = ranges.reduce((sum, { layer, start, stop }) => sum + (stop - start) * expertBytes(layer), 0);
    return WORKER_OVERHEAD_BYTES + weights;
}
