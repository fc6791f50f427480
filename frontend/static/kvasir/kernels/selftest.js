/**
 * The self-test of KX1 kernels: fixed inputs, frozen digests of what must come out (docs/reference/kx1.md).
 *
 * Called before a kernel is used, and again once the engine has compiled it better: it goes through the kernel's own
 * interface, and finds faulty builds, drivers and devices. It proves nothing about later work. Twin of
 * kvasir/kernels/selftest.py.
 */

import { KernelError } from "./errors.js";
import { KX1_NAME, KX1_VERSION, MATRICES, matrixShape, packedRowBytes } from "./kx1_format.js";
import { adversarialRows, legalPackedRows, madeWeights } from "./kx1_inputs.js";
import { packRows } from "./kx1_pack.js";
import { SELF_TEST_CASES, SELF_TEST_SHAPE } from "./selftest_cases.js";

/** @import { ExpertKernel, ExpertWeights } from "./kernel_types.js" */
/** @import { WeightKind } from "./kx1_inputs.js" */
/** @import { SelfTestCase } from "./selftest_cases.js" */

/**
 * What of a kernel is tested; `encodeRows` where it has step 1 of its own.
 *
 * @typedef {Pick<ExpertKernel, "load" | "unload" | "compute"> & {
 *     encodeRows?: (rows: Uint32Array, cols: number) => Uint8Array | Promise<Uint8Array>}} TestedKernel
 */

let nRuns = 0; // two tests of one kernel at a time must not share keys

/**
 * Run a kernel on all cases. It needs room for two small experts (1 MiB).
 *
 * @param {TestedKernel} kernel
 * @returns {Promise<{digest: string, fingerprint: string}>} in hex
 * @throws {KernelError} naming what differed
 */
export async function selfTest(kernel) {
    /** @type {string[]} */
    const digests = [];
    for (const testCase of SELF_TEST_CASES) digests.push(...(await runCase(kernel, testCase)));
    const digest = await sha256(Uint8Array.from(digests.flatMap((hex) => [...bytesOfHex(hex)])));
    const told = new TextEncoder().encode(`${KX1_NAME} ${KX1_VERSION} ${digest}`);
    return { digest, fingerprint: await sha256(told) };
}

/**
 * @param {TestedKernel} kernel
 * @param {SelfTestCase} testCase
 * @returns {Promise<string[]>} its three digests
 */
async function runCase(kernel, testCase) {
    const { dModel } = SELF_TEST_SHAPE;
    const floats = adversarialRows(dModel, testCase.seed + 64);
    const made = kernel.encodeRows ? await kernel.encodeRows(floats, dModel) : packRows(floats, dModel);
    const rows = joined(made, legalPackedRows(dModel, testCase.seed + 65));
    const run = nRuns++;
    const keys = [`self-test ${run} first`, `self-test ${run} second`];
    try {
        await kernel.load(keys[0], testExpert(testCase, 0));
        await kernel.load(keys[1], testExpert(testCase, 1));
        return await compareOutputs(kernel, testCase, { made, rows, keys });
    } finally {
        for (const key of keys) kernel.unload(key);
    }
}

/**
 * @param {TestedKernel} kernel
 * @param {SelfTestCase} testCase
 * @param {{made: Uint8Array, rows: Uint8Array, keys: string[]}} inputs
 */
async function compareOutputs(kernel, testCase, { made, rows, keys }) {
    const { dModel } = SELF_TEST_SHAPE;
    const nRows = rows.length / packedRowBytes(dModel);
    const pairRows = Uint32Array.from({ length: 2 * nRows }, (_, pair) => pair >> 1);
    const pairKeys = Array.from(pairRows, (_, pair) => keys[pair & 1]);
    const outputs = bitsOf(await kernel.compute({ rows, nRows, dModel, pairRows, pairKeys }));
    const found = {
        rows: await sha256(made),
        first: await sha256(everySecond(outputs, 0, dModel)),
        second: await sha256(everySecond(outputs, 1, dModel)),
    };
    const names = { rows: "packed rows", first: "outputs of the first expert", second: "outputs of the second expert" };
    for (const part of /** @type {const} */ (["rows", "first", "second"])) {
        const wanted = testCase.digests[part];
        if (found[part] !== wanted) {
            const digests = `${found[part].slice(0, 16)}; ${wanted.slice(0, 16)} is right`;
            throw failure(testCase, `${names[part]} have digest ${digests}`);
        }
    }
    await checkSmallCalls(kernel, testCase, { rows, nRows, keys, outputs });
    return Object.values(found);
}

/**
 * Calls of one to three pairs must give the same bits: kernels have code of their own for few rows.
 *
 * @param {TestedKernel} kernel
 * @param {SelfTestCase} testCase
 * @param {{rows: Uint8Array, nRows: number, keys: string[], outputs: Uint32Array}} wanted
 */
async function checkSmallCalls(kernel, testCase, { rows, nRows, keys, outputs }) {
    const { dModel } = SELF_TEST_SHAPE;
    for (const expert of [0, 1]) {
        for (const nPairs of [1, 2, 3]) {
            const pairRows = Uint32Array.from({ length: nPairs }, (_, i) => nRows - nPairs + i - expert);
            const pairKeys = Array.from(pairRows, () => keys[expert]);
            const some = bitsOf(await kernel.compute({ rows, nRows, dModel, pairRows, pairKeys }));
            pairRows.forEach((row, pair) => {
                const start = (2 * row + expert) * dModel;
                const whole = outputs.subarray(start, start + dModel);
                const isSame = whole.every((bits, i) => bits === some[pair * dModel + i]);
                if (!isSame) throw failure(testCase, `a call of ${nPairs} pairs gives other bits than a larger one`);
            });
        }
    }
}

/**
 * @param {SelfTestCase} testCase
 * @param {number} number 0 or 1
 * @returns {ExpertWeights}
 */
function testExpert(testCase, number) {
    const [gate, up, down] = testCase.types;
    /** @type {WeightKind} */
    const kind = number === 0 ? "plain" : testCase.kind;
    return madeExpert({ gate, up, down }, SELF_TEST_SHAPE, testCase.seed + 16 * number, kind);
}

/**
 * An expert of made weights, matrix m with seed `seed + m`.
 *
 * @param {ExpertWeights["types"]} types
 * @param {{dModel: number, dFf: number}} shape
 * @param {number} seed
 * @param {WeightKind} kind
 * @returns {ExpertWeights}
 */
export function madeExpert(types, shape, seed, kind) {
    const [gate, up, down] = MATRICES.map((matrix, m) => {
        const { nOut, nIn } = matrixShape(matrix, shape);
        return madeWeights(types[matrix], nOut, nIn, seed + m, kind);
    });
    return { ...shape, types, gate, up, down };
}

/**
 * @param {SelfTestCase} testCase
 * @param {string} what
 */
function failure(testCase, what) {
    return new KernelError(
        `the kernel failed its self-test: ${what} (${testCase.types.join(" ")}); it cannot be used on this device`,
    );
}

/** @param {Float32Array} values */
function bitsOf(values) {
    return new Uint32Array(values.buffer, values.byteOffset, values.length);
}

/**
 * Rows number `first`, `first` + 2 and so on.
 *
 * @param {Uint32Array} rows
 * @param {number} first
 * @param {number} cols
 */
function everySecond(rows, first, cols) {
    const picked = new Uint32Array(rows.length / 2);
    for (let row = first; row < rows.length / cols; row += 2) {
        picked.set(rows.subarray(row * cols, (row + 1) * cols), (row >> 1) * cols);
    }
    return picked;
}

/**
 * @param {Uint8Array} first
 * @param {Uint8Array} second
 */
function joined(first, second) {
    const both = new Uint8Array(first.length + second.length);
    both.set(first);
    both.set(second, first.length);
    return both;
}

/**
 * @param {Uint8Array | Uint32Array} data
 * @returns {Promise<string>} hex
 */
export async function sha256(data) {
    const digest = await crypto.subtle.digest("SHA-256", /** @type {BufferSource} */ (data));
    return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {string} hex */
function bytesOfHex(hex) {
    return Uint8Array.from({ length: hex.length / 2 }, (_, i) => parseInt(hex.slice(2 * i, 2 * i + 2), 16));
}
