/**
 * Inputs that every implementation of KX1 can make for itself: docs/reference/kx1.md, "Inputs without files".
 *
 * Called by the self-test, by quick measurements and by the tests. Rows are the bits of f32 values. Twin of
 * kvasir/kernels/selftest_inputs.py.
 */

import { BLOCK, matrixBytes, PACKED_BLOCK, packedRowBytes, QUANT_TYPES } from "./kx1_format.js";

/** @import { QuantType } from "./kernel_types.js" */
/** @typedef {"plain" | "wild" | "low" | "high"} WeightKind */

const SCALES_SEED = 0x5ca1e000;

/**
 * What "low" and "high" set in each quant block: offset, length, byte of low, byte of high.
 *
 * @type {Record<QuantType, [number, number, number, number][]>}
 */
const EXTREME_FIELDS = {
    Q4_K: [
        [4, 12, 0xff, 0xff],
        [16, 128, 0x00, 0xff],
    ],
    Q5_K: [
        [4, 12, 0xff, 0xff],
        [16, 160, 0x00, 0xff],
    ],
    Q6_K: [
        [0, 192, 0x00, 0xff],
        [192, 16, 0x80, 0x7f],
    ],
    Q8_0: [[2, 32, 0x80, 0x7f]],
};

/**
 * Words 0 to n - 1 of stream `seed`.
 *
 * @param {number} seed
 * @param {number} n
 * @returns {Uint32Array}
 */
export function words(seed, n) {
    const made = new Uint32Array(n);
    let weyl = seed;
    for (let i = 0; i < n; i++) {
        weyl = (weyl + 0x9e3779b9) | 0;
        let x = Math.imul(weyl ^ (weyl >>> 16), 0x85ebca6b);
        x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
        made[i] = x ^ (x >>> 16);
    }
    return made;
}

/**
 * The first n bytes of stream `seed`.
 *
 * @param {number} seed
 * @param {number} n
 * @returns {Uint8Array}
 */
export function streamBytes(seed, n) {
    const made = new Uint8Array(words(seed, Math.ceil(n / 4)).buffer); // little-endian, as every browser's machine is
    return made.subarray(0, n);
}

/**
 * Bytes of a matrix of nOut rows of nIn weights.
 *
 * @param {QuantType} type
 * @param {number} nOut
 * @param {number} nIn
 * @param {number} seed
 * @param {WeightKind} kind
 * @returns {Uint8Array}
 */
export function madeWeights(type, nOut, nIn, seed, kind) {
    const { quantBytes, scales } = QUANT_TYPES[type];
    const made = streamBytes(seed, matrixBytes(type, nOut, nIn));
    const nBlocks = made.length / quantBytes;
    const drawn = words(seed + SCALES_SEED, nBlocks * scales.length);
    for (let block = 0; block < nBlocks; block++) {
        const start = block * quantBytes;
        if (kind === "low" || kind === "high") {
            for (const [offset, length, low, high] of EXTREME_FIELDS[type]) {
                made.fill(kind === "low" ? low : high, start + offset, start + offset + length);
            }
        }
        scales.forEach((offset, number) => {
            const bits = scaleBits(drawn[block * scales.length + number], kind);
            made[start + offset] = bits & 255;
            made[start + offset + 1] = bits >> 8;
        });
    }
    return made;
}

/**
 * Finite f16 bits from a word.
 *
 * @param {number} word
 * @param {WeightKind} kind
 */
function scaleBits(word, kind) {
    if (kind === "plain") return (((word >>> 16) & 3) << 10) | (word & 1023);
    const bits = word & 0xffff;
    return ((bits >> 10) & 31) === 31 ? bits & 0xbfff : bits;
}

/**
 * Rows [n, cols] of either sign from 1/256 up to 1, any mantissa.
 *
 * @param {number} n
 * @param {number} cols
 * @param {number} seed
 * @returns {Uint32Array}
 */
export function plainRows(n, cols, seed) {
    return words(seed, n * cols).map(plain);
}

/** @param {number} v */
function plain(v) {
    return (v & 0x807fffff) | ((119 + ((v >>> 23) & 7)) << 23);
}

/**
 * The 17 rows of docs/reference/kx1.md, each from (word, place in the row, columns).
 *
 * @type {((v: number, i: number, cols: number) => number)[]}
 */
const ADVERSARIAL = [
    () => 0,
    (v) => v & 0x807fffff, // subnormals of both signs
    () => 0x80800000, // -2^-126
    () => 0x7f7fffff, // the largest value
    (_, i) => 0x7f7fffff | (i << 31),
    (_, i, cols) => (i === Math.floor(cols / 3) ? 0x3f800000 : 0),
    (_, i) => 0x3f333333 | (i << 31), // 0.7 and -0.7
    (v) => (((v >>> 23) & 255) === 255 ? (v & 0x807fffff) | (127 << 23) : v), // any finite bits
    (v) => (v & 0x80000000) | ((1 + ((v >>> 8) % 254)) << 23), // powers of two
    (v, i) => edgeOfShift(v, i, 0x3fee2000), // s = 13, just
    (v, i) => edgeOfShift(v, i, 0x3fee2001), // s = 14, just
    (v, i) => (v & 0x807fffff) | ((130 - (Math.floor(i / 32) % 8)) << 23), // sub-blocks that halve
    (v, i) => (v & 0x807fffff) | ((200 - 9 * (Math.floor(i / BLOCK) % 21)) << 23), // blocks that fall
    (v, i) => (v & 0x807fffff) | ((i < BLOCK ? 193 : 127) << 23), // one block far above the rest
    tie,
    (v) => (v & 0x807fffff) | ((60 + ((v >>> 23) & 7)) << 23), // silu(g) * u near 2^-126
    plain,
];

/** @type {(v: number, i: number, first: number) => number} */
function edgeOfShift(v, i, first) {
    return i % BLOCK === 0 ? (v & 0x80000000) | first : (v & 0x807fffff) | (119 << 23);
}

/**
 * The f32 bits of 127 first in each sub-block, then of a half between codes.
 *
 * @type {(v: number, i: number) => number}
 */
function tie(v, i) {
    const twice = i % 32 === 0 ? 254 : 2 * ((v >>> 8) % 254) - 253;
    return new Uint32Array(Float32Array.of(twice / 2).buffer)[0];
}

/**
 * 17 rows at the edges of the format.
 *
 * @param {number} cols
 * @param {number} seed
 * @returns {Uint32Array} bits [17, cols]
 */
export function adversarialRows(cols, seed) {
    const drawn = words(seed, cols);
    const rows = new Uint32Array(ADVERSARIAL.length * cols);
    ADVERSARIAL.forEach((bitsOf, row) => {
        for (let i = 0; i < cols; i++) rows[row * cols + i] = bitsOf(drawn[i], i, cols);
    });
    return rows;
}

/**
 * Three packed rows that no quantiser makes and every kernel must accept.
 *
 * @param {number} cols
 * @param {number} seed
 * @returns {Uint8Array} [3, packedRowBytes(cols)]
 */
export function legalPackedRows(cols, seed) {
    const rowBytes = packedRowBytes(cols);
    const rows = streamBytes(seed, 3 * rowBytes);
    for (let start = 0; start < rows.length; start += PACKED_BLOCK) {
        const row = Math.floor(start / rowBytes);
        const codes = rows.subarray(start, start + BLOCK);
        const rest = rows.subarray(start + BLOCK, start + PACKED_BLOCK);
        if (row > 0) {
            codes.fill(row === 1 ? 0x7f : 0x81);
            rest.fill(0xff);
            continue;
        }
        for (const [i, code] of codes.entries()) if (code === 0x80) codes[i] = 0x81;
        for (let i = 0; i < 4; i++) {
            if ((rest[i] & 15) === 0) rest[i] |= 0x01;
            if (rest[i] >> 4 === 0) rest[i] |= 0x10;
        }
    }
    return rows;
}
