/**
 * How large an answer may be. Twin of result_bytes and answer_bytes in kvasir/wire/split.py; splitting is the
 * backbone's affair.
 */

import { sumsBytes } from "./header.js";

const RESULT_VALUE_BYTES = 4; // an f16 answer may have to go as f32

/**
 * Payload bytes that an answer of `nPairs` may take.
 * @param {number} nPairs
 * @param {number} dModel
 * @returns {number}
 */
export function resultBytes(nPairs, dModel) {
    return nPairs * dModel * RESULT_VALUE_BYTES;
}

/**
 * The most payload bytes that the answer to a dispatch may have: of sums, or of one output a pair.
 * @param {import("./frames.js").Dispatch} dispatch
 * @returns {number}
 */
export function answerBytes({ nRows, pairIds, dModel, sums }) {
    return sums === null ? resultBytes(pairIds.length, dModel) : sumsBytes(nRows, dModel);
}
