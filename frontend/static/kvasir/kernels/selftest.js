/**
 * The self-test of KX1 kernels: fixed inputs, frozen digests of what must come out (docs/reference/kx1.md).
 *
 * Called before a kernel is used, and again once the engine has compiled it better: it goes through the kernel's own
 * interface, and finds faulty builds, drivers and devices. It proves nothing about later work. Twin of
 * kvasir/kernels/selftest.py.
 */

import { KernelError } from "../errors.js";
import { KX1_NAME, KX1_VERSION, MATRICES, matrixShape, packedRowBytes, packRows } from "./kx1_format.js";
import { adversarialRows, legalPackedRows, madeWeights } from "./kx1_inputs.js";

/** @import { ExpertKernel, ExpertWeights, QuantType } from "./kernel_types.js" */
/** @import { WeightKind } from "./kx1_inputs.js" */

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

/**
 * @typedef {object} SelfTestCase
 * @property {[QuantType, QuantType, QuantType]} types of gate, up and down
 * @property {WeightKind} kind of the second expert's weights; the first's are plain
 * @property {number} seed
 * @property {{rows: string, first: string, second: string}} digests SHA-256 of the packed rows and of each expert's
 *   outputs, in hex
 */

export const SELF_TEST_SHAPE = { dModel: 512, dFf: 256 };

/** SHA-256 of all digests below, in order. */
export const SELF_TEST_DIGEST = "7a45ced86b8879ec67df5aedd91b2967d7b0c0ec0b941ee76f29dbdc3a1f5858";

/** @type {SelfTestCase[]} */
export const SELF_TEST_CASES = [
    {
        types: ["Q4_K", "Q4_K", "Q6_K"],
        kind: "wild",
        seed: 1000,
        digests: {
            rows: "d4d8ede321a7848aa3fe75439cd113de21bd297fb9234fdd8c9735db4eec8329",
            first: "af8498ed31f4f4825a5c5b92ffc1e46f48429da475d95118021310e3abf4c3a1",
            second: "f10f6b458cd7bebf53d25454fb3d2252017fd13ea07443a1d2c036f7ee23717c",
        },
    },
    {
        types: ["Q5_K", "Q5_K", "Q5_K"],
        kind: "high",
        seed: 2000,
        digests: {
            rows: "d9f51dda158d0c07e1b67b88b86a6961d2108ec3491d25d27442bd610a87558f",
            first: "a6e1f5775e5b153f60bca82b820cf10e643487d52e3a407d4ad6e203b680f953",
            second: "2f5bad2dc759ec7ec744e1c98b99242a877dc77af9e514d973d9efd76a8b6c7c",
        },
    },
    {
        types: ["Q6_K", "Q6_K", "Q4_K"],
        kind: "low",
        seed: 3000,
        digests: {
            rows: "77febbb83eb6779d78c14867cfde4c87a814bf16eae93843a68f709156837bf7",
            first: "e74ac21ee8740eb3830d8e705faeb48f984a67cb1e9b3631ceb2970ab7f20477",
            second: "37c63e58ff9e8ff41b2b13029d213b30dfcfa669992c87d224856b52b3590088",
        },
    },
    {
        types: ["Q8_0", "Q8_0", "Q8_0"],
        kind: "wild",
        seed: 4000,
        digests: {
            rows: "db4c4e998d78d3c530e8070a5aca68984345c58d080a2ef9ddbeed41a6a6bc9c",
            first: "2d70d0f766102825a6aaf31a1d35f1cb00c6716f534918a21a398c13c0ad7775",
            second: "ed0e4b69e07baa565eb03b5659b19f8d3c645018a25431afbbf8bc87bcbc2f05",
        },
    },
];
