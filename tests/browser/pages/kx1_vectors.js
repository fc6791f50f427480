/**
 * All golden vectors of tests/golden/kx1 against one WebAssembly build, in node and in a page: bits are compared.
 *
 * `checkVectors` takes an instance with the steps of KX1 (`wasm/instance.js`) and returns what differed.
 */

import { checkPackedRows, packedRowBytes, packRows, weightExponents } from "/static/kvasir/kernels/kx1_format.js";
import { adversarialRows, madeWeights, plainRows, words } from "/static/kvasir/kernels/kx1_inputs.js";
import { sha256 } from "/static/kvasir/kernels/selftest.js";

const ARRAYS = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, i32: Int32Array };
const MATRICES = ["gate", "up", "down"];
/** Calls of so many rows: few rows, shares of many, and all. */
const BATCHES = [20, 1, 2, 3, 4, 5, 7];
/** What steps 2 and 4 alone have vectors for: no build shows them by themselves, matmul covers them. */
const UNSEEN = ["scale", "round"];

/**
 * @param {{cases: any[], bytes: ArrayBuffer}} golden vectors.json and vectors.bin
 * @param {import("../../../frontend/static/kvasir/kernels/wasm/instance.js").Kx1Instance} instance
 * @returns {Promise<{nCases: number, differing: string[]}>}
 */
export async function checkVectors({ cases, bytes }, instance) {
    const quantised = cases.filter((each) => each.kind === "quantise");
    const packedRows = new Map(quantised.map((each) => [each.name, arraysOf(each, bytes).packed]));
    const context = { instance, packedRows };
    const differing = [];
    const seen = cases.filter((each) => !UNSEEN.includes(each.kind));
    for (const each of seen) {
        const isRight = await CHECKS[each.kind](each, arraysOf(each, bytes), context);
        if (!isRight) differing.push(`${each.kind} ${each.name}`);
    }
    return { nCases: seen.length, differing };
}

function arraysOf({ arrays = {} }, bytes) {
    const size = (shape) => shape.reduce((product, n) => product * n, 1);
    const array = ({ dtype, offset, shape }) => new ARRAYS[dtype](bytes, offset, size(shape));
    return Object.fromEntries(Object.entries(arrays).map(([name, entry]) => [name, array(entry)]));
}

const CHECKS = {
    words: (_, { seeds, words: wanted }) =>
        [...seeds].every((seed, i) => same(words(seed, 16), wanted.subarray(16 * i, 16 * i + 16))),
    quantise: ({ cols }, { rows, packed }, { instance }) =>
        same(goldenRows(cols), rows) &&
        same(instance.packRows(rows, cols), packed) &&
        same(packRows(rows, cols), packed),
    refuse: ({ cols }, { packed }) => rowsOf(packed, packedRowBytes(cols)).every((row) => refuses(row, cols)),
    silu: (_, { gate, up, outputs }, { instance }) => same(instance.siluMul(gate, up), outputs),
    "silu hash": async ({ n, sha256: wanted }, _, { instance }) =>
        (await sha256(instance.siluMul(...siluInputs(n)))) === wanted,
    matmul: ({ type, n_out: nOut, n_in: nIn, rows }, { weights, outputs }, { instance, packedRows }) =>
        BATCHES.every((n) => {
            const matrix = { type, nOut, nIn, bytes: weights };
            const parts = batches(packedRows.get(rows), packedRowBytes(nIn), n);
            return same(Uint32Array.from(parts.flatMap((part) => [...instance.multiply(matrix, part)])), outputs);
        }),
    "matmul hash": async ({ type, n_out: nOut, n_in: nIn, seed, weights, sha256: wanted }, _, { instance }) => {
        const matrix = { type, nOut, nIn, bytes: madeWeights(type, nOut, nIn, seed, weights) };
        return (await sha256(instance.multiply(matrix, instance.packRows(goldenRows(nIn), nIn)))) === wanted;
    },
    expert: async ({ matrices }, { packed, outputs }, { instance }) => {
        const weights = await madeExpert(matrices);
        return BATCHES.every((n) => same(expertOutputs(instance, weights, packed, n), outputs));
    },
    "expert hash": async (each, _, { instance }) => {
        const weights = await madeExpert(each.matrices);
        const rows = instance.packRows(plainRows(each.n_rows, weights.dModel, each.rows_seed), weights.dModel);
        const outputs = expertOutputs(instance, weights, rows, each.n_rows);
        return (await sha256(rows)) === each.packed_sha256 && (await sha256(outputs)) === each.sha256;
    },
};

function goldenRows(cols) {
    const rows = new Uint32Array(20 * cols);
    rows.set(adversarialRows(cols, cols));
    rows.set(plainRows(3, cols, cols + 1), 17 * cols);
    return rows;
}

function siluInputs(n) {
    const finite = (bits) => (((bits >>> 23) & 255) === 255 ? bits & 0xbfffffff : bits);
    const [gate, up] = [words(900, n).map(finite), words(901, n).map(finite)];
    gate.set(
        plainRows(1, n / 2, 902).map((bits) => bits + (5 << 23)),
        n / 2,
    );
    up.set(plainRows(1, n / 2, 903), n / 2);
    return [gate, up];
}

async function madeExpert(matrices) {
    const expert = { dModel: matrices[0].n_in, dFf: matrices[0].n_out, types: {} };
    for (const [i, { type, n_out, n_in, seed, kind, sha256: wanted }] of matrices.entries()) {
        const made = madeWeights(type, n_out, n_in, seed, kind);
        if ((await sha256(made)) !== wanted) throw new Error(`the made weights of ${MATRICES[i]} differ`);
        expert.types[MATRICES[i]] = type;
        expert[MATRICES[i]] = made;
    }
    return expert;
}

function expertOutputs(instance, weights, packed, n) {
    const rowBytes = packedRowBytes(weights.dModel);
    const outputs = new Float32Array((packed.length / rowBytes) * weights.dModel);
    const expert = instance.load(weights, weightExponents(weights));
    let start = 0;
    for (const part of batches(packed, rowBytes, n)) {
        const stop = start + (part.length / rowBytes) * weights.dModel;
        instance.compute(expert, part, outputs.subarray(start, stop));
        start = stop;
    }
    instance.unload(expert);
    return new Uint32Array(outputs.buffer);
}

function batches(rows, rowBytes, n) {
    return rowsOf(rows, n * rowBytes);
}

function rowsOf(bytes, size) {
    return Array.from({ length: Math.ceil(bytes.length / size) }, (_, i) => bytes.subarray(i * size, (i + 1) * size));
}

function refuses(row, cols) {
    try {
        checkPackedRows(row, cols);
        return false;
    } catch {
        return true;
    }
}

function same(found, wanted) {
    return found.length === wanted.length && found.every((value, i) => value === wanted[i]);
}
