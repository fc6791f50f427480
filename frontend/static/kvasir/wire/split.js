/**
 * How large an answer may be. Only the backbone splits dispatches.
 */

import { sumsBytes } from "./header.js";

const RESULT_VALUE_BYTES = 4; // an f16 answer may have to go as f32

/**
 * Return the payload bytes that an answer of `nPairs` may take.
 * @param {number} nPairs
 * @param {number} dModel
 * @returns {number}
 */
export function resultBytes(nPairs, dModel) {
    return nPairs * dModel * RESULT_VALUE_BYTES;
}

/**
 * Return the most payload bytes of the answer to a dispatch: of sums, or of one output for each pair.
 * @param {import("./frames.js").Dispatch} dispatch
 * @returns {number}
 */
export function answerBytes({ nRows, pairIds, dModel, sums }) {
    return sums === null ? resultBytes(pairIds.length, dModel) : sumsBytes(nRows, dModel);
}
