/**
 * How large an answer may be. Twin of result_bytes in kvasir/wire_split.py; splitting is the backbone's affair.
 */

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
