/**
 * The golden experts of tests/golden/kx1, for any kernel in a page: weights are made here, outputs compared by bits.
 *
 * Imported by browser tests through the static site.
 */

import { packRows } from "/static/kvasir/kernels/kx1_format.js";
import { madeWeights, plainRows } from "/static/kvasir/kernels/kx1_inputs.js";

/** @typedef {import("../../../frontend/static/kvasir/kernels/kernel_types.js").ExpertWeights} ExpertWeights */
/** @typedef {{name: string, weights: ExpertWeights, packed: Uint8Array, nRows: number, outputs: Uint32Array}} GoldenExpert */

/** All whose outputs are in the file. @returns {Promise<GoldenExpert[]>} */
export async function goldenExperts() {
    const { cases } = await (await fetch("/golden/kx1/vectors.json")).json();
    const bytes = await (await fetch("/golden/kx1/vectors.bin")).arrayBuffer();
    return cases.filter((each) => each.kind === "expert").map((each) => goldenExpert(each, bytes));
}

function goldenExpert({ name, d_model: dModel, d_ff: dFf, matrices, arrays }, bytes) {
    const { packed, outputs } = arrays;
    const nRows = outputs.shape[0];
    return {
        name,
        weights: makeExpert(dModel, dFf, matrices),
        packed: new Uint8Array(bytes, packed.offset, nRows * packed.shape[1]),
        nRows,
        outputs: new Uint32Array(bytes, outputs.offset, nRows * dModel),
    };
}

/** Those at full shape, of which the file has hashes: {name, weights, packed, nRows, hash}. */
export async function goldenHashes() {
    const { cases } = await (await fetch("/golden/kx1/vectors.json")).json();
    return cases
        .filter((each) => each.kind === "expert hash")
        .map(({ name, d_model: dModel, d_ff: dFf, matrices, n_rows: nRows, rows_seed: seed, sha256: hash }) => ({
            name,
            weights: makeExpert(dModel, dFf, matrices),
            packed: packRows(plainRows(nRows, dModel, seed), dModel),
            nRows,
            hash,
        }));
}

/** SHA-256 of an array's bytes, in hex. */
export async function sha256(array) {
    const digest = await crypto.subtle.digest("SHA-256", array);
    return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** An expert of made weights: `matrices` are {type, seed, kind} of gate, up and down. */
export function makeExpert(dModel, dFf, matrices) {
    const made = matrices.map(({ type, seed, kind }, i) => {
        const [nOut, nIn] = i === 2 ? [dModel, dFf] : [dFf, dModel];
        return madeWeights(type, nOut, nIn, seed, kind);
    });
    const [gate, up, down] = matrices.map(({ type }) => type);
    return { dModel, dFf, types: { gate, up, down }, gate: made[0], up: made[1], down: made[2] };
}

/** A call of every row by one expert, `repeat` times over. */
export function callAll({ packed, nRows, weights }, key, repeat = 1) {
    const n = nRows * repeat;
    return {
        rows: packed,
        nRows,
        dModel: weights.dModel,
        pairRows: Uint32Array.from({ length: n }, (_, i) => i % nRows),
        pairKeys: Array.from({ length: n }, () => key),
    };
}

/** How many values differ in their bits; `expected` is repeated as often as it fits. */
export function differences(outputs, expected) {
    const bits = new Uint32Array(outputs.buffer, outputs.byteOffset, outputs.length);
    if (bits.length % expected.length) return bits.length;
    return bits.reduce((n, value, i) => n + Number(value !== expected[i % expected.length]), 0);
}
