/**
 * Step 7 of KX1 (docs/reference/kx1.md): sums of weighted outputs as integers, and their packed form. Twin of
 * kvasir/kernels/sums.py. The compute queue sums where a backbone asks for it; the wire packs and unpacks.
 *
 * A pair's integer is the product of two f32 values times 2^-exponent, rounded half away from zero and cut to 2^26. In
 * double precision that is exact: the product has 48 significant bits, scaling by a power of two changes none, and one
 * half is added without rounding to all that is not cut.
 */

import { KernelError } from "../errors.js";
import { BLOCK } from "./kx1_format.js";

/** 31 * 2^26 < 2^31 */
export const MAX_PAIRS_OF_ROW = 31;
const MIN_EXPONENT = -180;
const MAX_EXPONENT = 127;
const LIMIT = 2 ** 26;
/** Below it an f32 value is subnormal and counts as 0, as everywhere in KX1. */
const SMALLEST_NORMAL = 2 ** -126;
const DOUBLE_BIAS = 1023;

/**
 * Adds up round(weight * output / 2^exponent) over each row's pairs.
 * @param {Float32Array} outputs [nPairs * d]
 * @param {Float32Array} weights [nPairs]
 * @param {Uint32Array} pairRows [nPairs] whose row a pair is
 * @param {Int32Array} exponents [nRows]
 * @returns {Int32Array} [nRows * d]
 * @throws {KernelError} for a request that `checkSumRequest` refuses, and for outputs of other pairs
 */
export function sumOutputs(outputs, weights, pairRows, exponents) {
    checkSumRequest(weights, pairRows, exponents, exponents.length);
    const d = pairRows.length > 0 ? outputs.length / pairRows.length : 0;
    if (!Number.isInteger(d))
        throw new KernelError(`${outputs.length} outputs are not those of ${pairRows.length} pairs`);
    const sums = new Int32Array(exponents.length * d);
    pairRows.forEach((row, pair) => {
        const weight = Math.abs(weights[pair]) < SMALLEST_NORMAL ? 0 : weights[pair];
        const output = outputs.subarray(pair * d, (pair + 1) * d);
        addPair(output, weight * powerOfTwo(-exponents[row]), sums.subarray(row * d, (row + 1) * d));
    });
    return sums;
}

/**
 * @param {Float32Array} output [d]
 * @param {number} factor
 * @param {Int32Array} sum [d], added to
 */
function addPair(output, factor, sum) {
    for (let i = 0; i < output.length; i++) {
        if (Math.abs(output[i]) < SMALLEST_NORMAL) continue;
        const product = output[i] * factor;
        const size = Math.abs(product) + 0.5;
        const whole = size < LIMIT ? Math.floor(size) : LIMIT;
        sum[i] += product < 0 ? -whole : whole;
    }
}

/** @param {number} exponent from -1022 to 1023 @returns {number} exact, which `**` need not be */
function powerOfTwo(exponent) {
    const view = new DataView(new ArrayBuffer(8));
    view.setUint32(0, (DOUBLE_BIAS + exponent) << 20);
    return view.getFloat64(0);
}

/**
 * @param {Float32Array} weights [nPairs]
 * @param {Uint32Array} pairRows [nPairs]
 * @param {Int32Array} exponents [nRows]
 * @param {number} nRows
 * @throws {KernelError} for a request for sums that no kernel answers, naming the value
 */
export function checkSumRequest(weights, pairRows, exponents, nRows) {
    if (weights.length !== pairRows.length) {
        throw new KernelError(`there are ${weights.length} weights for ${pairRows.length} pairs`);
    }
    const bad = weights.findIndex((weight) => !Number.isFinite(weight));
    if (bad >= 0) throw new KernelError(`weight ${bad} is not finite`);
    if (exponents.length !== nRows) throw new KernelError(`there are ${exponents.length} exponents for ${nRows} rows`);
    const far = exponents.find((exponent) => exponent < MIN_EXPONENT || exponent > MAX_EXPONENT);
    if (far !== undefined) {
        throw new KernelError(`an exponent is ${far}; ${MIN_EXPONENT} to ${MAX_EXPONENT} is right`);
    }
    const counts = new Uint32Array(nRows);
    for (const row of pairRows) {
        if (row >= nRows) throw new KernelError(`a pair is of row ${row}; there are ${nRows} rows`);
        counts[row] += 1;
    }
    const most = counts.reduce((a, b) => Math.max(a, b), 0);
    if (most > MAX_PAIRS_OF_ROW) {
        throw new KernelError(`a row has ${most} pairs; sums hold at most ${MAX_PAIRS_OF_ROW}`);
    }
}

/**
 * The packed form in which sums travel: for each 256 values a width and as many bits a value.
 * @param {Int32Array} sums [nRows * d]
 * @param {number} d a multiple of 256
 * @returns {Uint8Array}
 * @throws {KernelError} for another d
 */
export function packSums(sums, d) {
    checkWidth(d);
    const widths = Array.from({ length: sums.length / BLOCK }, (_, b) => widthOf(sums, b * BLOCK));
    const packed = new Uint8Array(widths.reduce((sum, width) => sum + 1 + blockBytes(width), 0));
    let at = 0;
    widths.forEach((width, b) => {
        packed[at] = width;
        packBlock(sums, b * BLOCK, width, packed, at + 1);
        at += 1 + blockBytes(width);
    });
    return packed;
}

/**
 * The reverse.
 * @param {Uint8Array} packed
 * @param {number} nRows
 * @param {number} d a multiple of 256
 * @returns {Int32Array} [nRows * d]
 * @throws {KernelError} for bytes that `packSums` does not write
 */
export function unpackSums(packed, nRows, d) {
    checkWidth(d);
    const sums = new Int32Array(nRows * d);
    let at = 0;
    for (let start = 0; start < sums.length; start += BLOCK) {
        const width = at < packed.length ? packed[at] : 0;
        const isKnown = width % 8 === 0 ? width <= 32 : width === 12;
        if (!isKnown)
            throw new KernelError(`a block of packed sums has ${width} bits, one of 0, 8, 12, 16, 24, 32 is right`);
        if (at + 1 + blockBytes(width) > packed.length) {
            throw new KernelError(`${packed.length} bytes of packed sums are not ${nRows} rows of ${d} values`);
        }
        unpackBlock(packed, at + 1, width, sums, start);
        const suffice = widthOf(sums, start);
        if (suffice !== width) throw new KernelError(`a block of packed sums has ${width} bits, ${suffice} suffice`);
        at += 1 + blockBytes(width);
    }
    if (at !== packed.length) throw new KernelError(`packed sums have ${packed.length - at} bytes too many`);
    return sums;
}

/** @param {number} d */
function checkWidth(d) {
    if (d % BLOCK !== 0) throw new KernelError(`rows of sums have ${d} values; a multiple of ${BLOCK} is needed`);
}

/** @param {number} width in bits @returns {number} */
function blockBytes(width) {
    return (BLOCK / 8) * width;
}

/** @param {Int32Array} sums @param {number} start @returns {number} the smallest width that holds all of a block */
function widthOf(sums, start) {
    let [bits, any] = [0, 0];
    for (let i = start; i < start + BLOCK; i++) {
        bits |= sums[i] ^ (sums[i] >> 31);
        any |= sums[i];
    }
    if (any === 0) return 0;
    if (bits < 1 << 7) return 8;
    if (bits < 1 << 11) return 12;
    if (bits < 1 << 15) return 16;
    return bits < 1 << 23 ? 24 : 32;
}

/** @param {Int32Array} sums @param {number} start @param {number} width @param {Uint8Array} packed @param {number} at */
function packBlock(sums, start, width, packed, at) {
    if (width === 12) {
        for (let i = start; i < start + BLOCK; i += 2) {
            const pair = (sums[i] & 0xfff) | ((sums[i + 1] & 0xfff) << 12);
            for (let shift = 0; shift < 24; shift += 8) packed[at++] = pair >> shift;
        }
        return;
    }
    for (let i = start; i < start + BLOCK; i++) {
        for (let shift = 0; shift < width; shift += 8) packed[at++] = sums[i] >> shift;
    }
}

/** @param {Uint8Array} packed @param {number} at @param {number} width @param {Int32Array} sums @param {number} start */
function unpackBlock(packed, at, width, sums, start) {
    if (width === 12) {
        for (let i = start; i < start + BLOCK; i += 2, at += 3) {
            const pair = packed[at] | (packed[at + 1] << 8) | (packed[at + 2] << 16);
            sums[i] = (pair << 20) >> 20;
            sums[i + 1] = (pair << 8) >> 20;
        }
        return;
    }
    const unused = 32 - width;
    for (let i = start; i < start + BLOCK; i++) {
        let value = 0;
        for (let shift = 0; shift < width; shift += 8) value |= packed[at++] << shift;
        sums[i] = (value << unused) >> unused;
    }
}
