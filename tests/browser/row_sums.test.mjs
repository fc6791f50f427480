// Step 7 of KX1 in JavaScript: the golden vectors of tests/golden/kx1_sums, its own words in BigInt, and what is refused.
// Started by tests/contract/test_kx1_sums_javascript.py.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { KernelError } from "/static/kvasir/errors.js";
import { checkSumRequest, packSums, sumOutputs, unpackSums } from "/static/kvasir/kernels/sums.js";
import { mixed } from "./golden_frames.mjs";

const FOLDER = new URL("../golden/kx1_sums/", import.meta.url);
const { cases: CASES, file } = JSON.parse(readFileSync(new URL("vectors.json", FOLDER), "utf8"));
const DATA = new Uint8Array(readFileSync(new URL(file, FOLDER)));
const TYPES = { u8: Uint8Array, u32: Uint32Array, i32: Int32Array };

function arrayOf(entry, Type = TYPES[entry.dtype]) {
    const length = entry.shape.reduce((a, b) => a * b, 1);
    return new Type(DATA.slice(entry.offset, entry.offset + length * Type.BYTES_PER_ELEMENT).buffer);
}

for (const { kind, name, d, n_rows: nRows, arrays } of CASES) {
    test(`golden ${kind}: ${name}`, () => {
        const packed = arrayOf(arrays.packed);
        if (kind === "refuse") {
            assert.throws(
                () => unpackSums(packed, nRows, d),
                (error) => error instanceof KernelError && /packed sums/.test(error.message),
            );
            return;
        }
        const sums = arrayOf(arrays.sums);
        if (kind === "sums") {
            const [outputs, weights] = [arrayOf(arrays.outputs, Float32Array), arrayOf(arrays.weights, Float32Array)];
            const rows = arrayOf(arrays.pair_rows, Uint32Array);
            assert.deepEqual(sumOutputs(outputs, weights, rows, arrayOf(arrays.exponents)), sums);
        }
        assert.deepEqual(packSums(sums, d), packed);
        assert.deepEqual(unpackSums(packed, nRows, d), sums);
    });
}

const bitsOf = (value) => new Uint32Array(Float32Array.of(value).buffer)[0];
const fieldOf = (bits) => (bits >>> 23) & 255;
const mantOf = (bits) => (fieldOf(bits) === 0 ? 0n : BigInt((bits & 0x7fffff) | 0x800000));

// The page's own words for one pair.
function pairInteger(output, weight, exponent) {
    const [o, p] = [bitsOf(output), bitsOf(weight)];
    const product = mantOf(p) * mantOf(o);
    const s = exponent + 300 - fieldOf(p) - fieldOf(o);
    if (product === 0n || s > 62) return 0;
    let size = 2n ** 26n;
    if (s >= 1) {
        const rounded = (product + 2n ** BigInt(s - 1)) >> BigInt(s);
        if (rounded < size) size = rounded;
    }
    return Number(o >>> 31 === p >>> 31 ? size : -size);
}

test("pairs are rounded as the page says, at every exponent", () => {
    const edges = [
        0, 0x80000000, 1, 0x807fffff, 0x00800000, 0x7f7fffff, 0xff7fffff, 0x3f000000, 0x4c000000, 0x4bffffff,
    ];
    let nBetween = 0;
    for (let exponent = -180; exponent <= 127; exponent++) {
        const raw = Uint32Array.from({ length: 256 }, (_, i) => {
            const field = Math.min(Math.max(exponent + 173 - (mixed(i + exponent) >>> 26), 1), 254); // s is 0 to 63
            return edges[i] ?? ((mixed(i * 7 + 1) & 0x807fffff) | (field << 23)) >>> 0;
        });
        const outputs = new Float32Array(raw.buffer);
        for (const bits of [0x3f800000, 0xbeaaaaab, 0x00800000, 0x7f7fffff, 0x007fffff, 0x2f123456]) {
            const weight = new Float32Array(Uint32Array.of(bits).buffer);
            const sums = sumOutputs(outputs, weight, Uint32Array.of(0), Int32Array.of(exponent));
            const wanted = Int32Array.from(outputs, (output) => pairInteger(output, weight[0], exponent));
            assert.deepEqual(sums, wanted, `exponent ${exponent}, weight ${bits.toString(16)}`);
            nBetween += wanted.filter((sum) => sum !== 0 && Math.abs(sum) < 2 ** 26).length;
        }
    }
    assert.ok(nBetween > 50_000, `${nBetween} sums that are neither 0 nor cut`);
});

test("sums of any split of the pairs add up to the same", () => {
    const [nPairs, nRows, d] = [40, 3, 256];
    const outputs = Float32Array.from({ length: nPairs * d }, (_, i) => (mixed(i) >>> 8) / 2 ** 20 - 8);
    const weights = Float32Array.from({ length: nPairs }, (_, i) => (mixed(i + 9) >>> 8) / 2 ** 24);
    const pairRows = Uint32Array.from({ length: nPairs }, (_, i) => mixed(i) % nRows);
    const exponents = Int32Array.of(-20, -3, 7);
    const whole = sumOutputs(outputs, weights, pairRows, exponents);
    for (let cut = 0; cut <= nPairs; cut += 7) {
        const parts = [
            [0, cut],
            [cut, nPairs],
        ].map(([start, stop]) =>
            sumOutputs(
                outputs.subarray(start * d, stop * d),
                weights.subarray(start, stop),
                pairRows.subarray(start, stop),
                exponents,
            ),
        );
        const added = whole.map((_, i) => (parts[0][i] ?? 0) + (parts[1][i] ?? 0));
        assert.deepEqual(added, whole);
    }
});

test("what no kernel sums is refused by name", () => {
    const [one, row, exponent] = [Float32Array.of(1), Uint32Array.of(0), Int32Array.of(0)];
    const many = (n) => [new Float32Array(n), new Uint32Array(n), exponent, 1];
    checkSumRequest(one, row, Int32Array.of(-180), 1);
    checkSumRequest(one, row, Int32Array.of(127), 1);
    checkSumRequest(...many(31));
    for (const [request, message] of [
        [[Float32Array.of(Infinity), row, exponent, 1], /weight 0 is not finite/],
        [[Float32Array.of(NaN), row, exponent, 1], /weight 0 is not finite/],
        [[one, row, Int32Array.of(-181), 1], /an exponent is -181; -180 to 127/],
        [[one, row, Int32Array.of(128), 1], /an exponent is 128/],
        [[one, row, exponent, 2], /1 exponents for 2 rows/],
        [[one, Uint32Array.of(1), exponent, 1], /row 1; there are 1 rows/],
        [[one, Uint32Array.of(0, 0), exponent, 1], /1 weights for 2 pairs/],
        [many(32), /a row has 32 pairs; sums hold at most 31/],
    ]) {
        assert.throws(
            () => checkSumRequest(...request),
            (error) => error instanceof KernelError && message.test(error.message),
        );
    }
    assert.throws(
        () => sumOutputs(new Float32Array(5), new Float32Array(2), new Uint32Array(2), exponent),
        /5 outputs/,
    );
    for (const d of [255, 257]) {
        assert.throws(() => packSums(new Int32Array(d), d), /multiple of 256/);
        assert.throws(() => unpackSums(new Uint8Array(1), 1, d), /multiple of 256/);
    }
});

test("every width but the smallest that holds a block is refused", () => {
    for (let width = 1; width < 256; width++) {
        const packed = new Uint8Array(1 + 32 * width);
        packed.set([width, 1]); // the first value is 1, all others 0, at any width from 2
        if (width === 8) assert.deepEqual(packSums(unpackSums(packed, 1, 256), 256), packed);
        else assert.throws(() => unpackSums(packed, 1, 256), KernelError, `width ${width}`);
    }
    assert.deepEqual(unpackSums(Uint8Array.of(0), 1, 256), new Int32Array(256));
});
