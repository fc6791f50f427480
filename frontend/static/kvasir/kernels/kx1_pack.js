/**
 * Step 1 of KX1 in JavaScript: f32 rows, as bits, to packed rows.
 *
 * Called by the self-test for kernels that take packed rows alone, and by measurements. Integers only; slow, and exact.
 */

import { KernelError } from "../errors.js";
import { BLOCK, PACKED_BLOCK, packedRowBytes } from "./kx1_format.js";

const LARGEST_FOR_13 = 15 * 127 * 2 ** 13;
const EXPONENT_BASE = 13;

/**
 * @param {Uint32Array} rows bits of f32 [n, cols]
 * @param {number} cols a multiple of 256
 * @returns {Uint8Array} [n, packedRowBytes(cols)]
 * @throws {KernelError} for infinity and NaN
 */
export function packRows(rows, cols) {
    const packed = new Uint8Array((rows.length / cols) * packedRowBytes(cols));
    for (let block = 0; block < rows.length / BLOCK; block++) {
        const bits = rows.subarray(block * BLOCK, (block + 1) * BLOCK);
        packBlock(bits, packed.subarray(block * PACKED_BLOCK, (block + 1) * PACKED_BLOCK));
    }
    return packed;
}

/**
 * @param {Uint32Array} bits 256 of them
 * @param {Uint8Array} packed 261 bytes
 */
function packBlock(bits, packed) {
    const largest = Array.from({ length: 8 }, (_, j) => largestMagnitude(bits.subarray(32 * j, 32 * j + 32)));
    const most = Math.max(...largest);
    if (most >= 0x7f800000) throw new KernelError("a row holds infinity or NaN; rows must be finite");
    const exponent = most >>> 23;
    const s = mantissa(most) > LARGEST_FOR_13 ? 14 : 13;
    for (let j = 0; j < 8; j++) {
        const below = Math.min(exponent - (largest[j] >>> 23), 31);
        const wanted = ((mantissa(largest[j]) >>> below) + ((127 << s) - 1)) >>> s;
        const multiplier = Math.max(1, Math.floor(wanted / 127));
        packed[BLOCK + (j >> 1)] |= multiplier << (4 * (j & 1));
        packCodes(bits, 32 * j, { exponent, s, inverse: Math.floor(524288 / multiplier) }, packed);
    }
    packed[BLOCK + 4] = exponent ? exponent + s - EXPONENT_BASE : 0;
}

/**
 * The codes of one sub-block.
 *
 * @param {Uint32Array} bits
 * @param {number} start
 * @param {{exponent: number, s: number, inverse: number}} scale
 * @param {Uint8Array} packed
 */
function packCodes(bits, start, { exponent, s, inverse }, packed) {
    for (let i = start; i < start + 32; i++) {
        const magnitude = bits[i] & 0x7fffffff;
        const shift = Math.min(8 + exponent - (magnitude >>> 23), 31);
        const product = (mantissa(magnitude) >>> shift) * inverse + 2 ** (s + 10); // below 2^32: exact
        const code = product >>> (s + 11);
        packed[i] = bits[i] >>> 31 ? -code : code;
    }
}

/** @param {Uint32Array} bits */
function largestMagnitude(bits) {
    return bits.reduce((most, value) => Math.max(most, value & 0x7fffffff), 0);
}

/** With the hidden bit; subnormal numbers count as 0. @param {number} magnitude */
function mantissa(magnitude) {
    return magnitude >>> 23 ? (magnitude & 0x7fffff) | 0x800000 : 0;
}
