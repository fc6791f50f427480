/**
 * The sizes of KX1's bytes, and what a kernel refuses before it computes: docs/reference/kx1.md, "What goes in".
 *
 * Called by both kernels, so that they refuse the same with the same words. Pure functions; nothing is kept.
 */

import { KernelError } from "../errors.js";

/** @import { ComputeCall, ExpertWeights, QuantType } from "./kernel_types.js" */

export const KX1_NAME = "kx1";
export const KX1_VERSION = 1;
/** What every right build of version 1 has: SHA-256 of "kx1 1 " and the digest of its self-test. */
export const KX1_FINGERPRINT = "3e397bc766e40632d732f29ec44fb72343a2433d0a95baf3389c554cc9c7d931";

export const BLOCK = 256;
export const PACKED_BLOCK = 261;
export const MAX_COLS = 16384;

/**
 * ggml's number of each type, bytes of 256 weights, and of a quant block; offsets of the f16 scales in it.
 *
 * @type {Record<QuantType, {code: number, blockBytes: number, quantBytes: number, scales: number[]}>}
 */
export const QUANT_TYPES = {
    Q4_K: { code: 12, blockBytes: 144, quantBytes: 144, scales: [0, 2] },
    Q5_K: { code: 13, blockBytes: 176, quantBytes: 176, scales: [0, 2] },
    Q6_K: { code: 14, blockBytes: 210, quantBytes: 210, scales: [208] },
    Q8_0: { code: 8, blockBytes: 272, quantBytes: 34, scales: [0] },
};

export const MATRICES = /** @type {const} */ (["gate", "up", "down"]);

/**
 * Rows and columns of one of an expert's matrices.
 *
 * @param {"gate" | "up" | "down"} matrix
 * @param {{dModel: number, dFf: number}} shape
 * @returns {{nOut: number, nIn: number}}
 */
export function matrixShape(matrix, { dModel, dFf }) {
    return matrix === "down" ? { nOut: dModel, nIn: dFf } : { nOut: dFf, nIn: dModel };
}

/**
 * Bytes of a matrix of nOut rows of nIn weights.
 *
 * @param {QuantType} type
 * @param {number} nOut
 * @param {number} nIn a multiple of 256
 */
export function matrixBytes(type, nOut, nIn) {
    return nOut * (nIn / BLOCK) * QUANT_TYPES[type].blockBytes;
}

/** Bytes of one packed row. @param {number} dModel */
export function packedRowBytes(dModel) {
    return (dModel / BLOCK) * PACKED_BLOCK;
}

/** Bytes of an expert's three matrices. @param {ExpertWeights} weights */
export function expertBytes(weights) {
    return MATRICES.reduce((sum, matrix) => sum + weights[matrix].length, 0);
}

/**
 * Step 2's `ew`: the largest exponent field of a matrix's scales, less one (0 where all are subnormal).
 *
 * @param {QuantType} type
 * @param {Uint8Array} bytes
 * @returns {number} 0 to 29, or -1 when a scale is infinite or NaN
 */
export function weightExponent(type, bytes) {
    const { quantBytes, scales } = QUANT_TYPES[type];
    let most = 0;
    for (let block = 0; block < bytes.length; block += quantBytes) {
        for (const offset of scales) {
            const field = (bytes[block + offset + 1] >> 2) & 31;
            if (field > most) most = field;
        }
    }
    if (most === 31) return -1;
    return Math.max(most, 1) - 1;
}

/**
 * Refuse weights that KX1 does not compute. Scales are looked at by `weightExponents`.
 *
 * @param {ExpertWeights} weights
 */
export function checkWeights(weights) {
    checkWidth("dModel", weights.dModel);
    checkWidth("dFf", weights.dFf);
    for (const matrix of MATRICES) {
        const type = weights.types[matrix];
        if (!Object.hasOwn(QUANT_TYPES, type)) {
            throw new KernelError(`${matrix} is ${type}; KX1 computes ${Object.keys(QUANT_TYPES).join(", ")}`);
        }
        const { nOut, nIn } = matrixShape(matrix, weights);
        const wanted = matrixBytes(type, nOut, nIn);
        if (weights[matrix].length !== wanted) {
            throw new KernelError(
                `${matrix} has ${weights[matrix].length} bytes; ${nOut} x ${nIn} of ${type} has ${wanted}`,
            );
        }
    }
}

/**
 * The exponents of gate, up and down; throws KernelError for a scale that is not finite.
 *
 * @param {ExpertWeights} weights already checked
 * @returns {[number, number, number]}
 */
export function weightExponents(weights) {
    const exponents = MATRICES.map((matrix) => {
        const exponent = weightExponent(weights.types[matrix], weights[matrix]);
        if (exponent < 0) throw new KernelError(`${matrix}: a scale is infinite or NaN; the file is damaged`);
        return exponent;
    });
    return /** @type {[number, number, number]} */ (exponents);
}

/**
 * Refuse a call whose rows or pairs are not what they should be. Keys are the kernel's to look up.
 *
 * @param {ComputeCall} call
 */
export function checkCall(call) {
    checkWidth("dModel", call.dModel);
    const wanted = call.nRows * packedRowBytes(call.dModel);
    if (call.rows.length !== wanted) {
        throw new KernelError(`${call.nRows} rows have ${call.rows.length} bytes; ${wanted} are needed`);
    }
    if (call.pairRows.length !== call.pairKeys.length) {
        throw new KernelError(`${call.pairRows.length} pairRows but ${call.pairKeys.length} pairKeys`);
    }
    for (const row of call.pairRows) {
        if (row >= call.nRows) throw new KernelError(`row number ${row} does not exist; there are ${call.nRows}`);
    }
    checkPackedRows(call.rows, call.dModel);
}

/**
 * Refuse codes of -128 and multipliers of 0: KX1's sums could overflow, and no quantiser writes them.
 *
 * @param {Uint8Array} rows packed rows
 * @param {number} dModel
 */
export function checkPackedRows(rows, dModel) {
    for (let start = 0; start < rows.length; start += PACKED_BLOCK) {
        const codesEnd = start + BLOCK;
        let what = "";
        for (let i = start; i < codesEnd; i++) if (rows[i] === 0x80) what = "code -128";
        for (let i = codesEnd; i < codesEnd + 4; i++) {
            if ((rows[i] & 15) === 0 || rows[i] >> 4 === 0) what ||= "multiplier 0";
        }
        if (what) {
            const row = Math.floor(start / packedRowBytes(dModel));
            throw new KernelError(`row ${row} holds ${what}; codes are -127 to 127 and multipliers 1 to 15`);
        }
    }
}

/**
 * @param {string} name
 * @param {number} cols
 */
function checkWidth(name, cols) {
    if (!Number.isInteger(cols) || cols < BLOCK || cols > MAX_COLS || cols % BLOCK !== 0) {
        throw new KernelError(`${name} is ${cols}; KX1 needs a multiple of ${BLOCK}, ${BLOCK} to ${MAX_COLS}`);
    }
}

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
