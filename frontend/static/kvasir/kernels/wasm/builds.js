/**
 * The builds of KX1 in WebAssembly: which of them this engine takes, and which is the fastest here.
 *
 * Called by `wasm/kernel.js`. All builds give the same bits, so speed alone decides; a build whose self-test fails,
 * before or after the engine has compiled it better, is never taken.
 */

import { KernelError, UnsupportedBrowserError } from "../../errors.js";
import { packedRowBytes, packRows, weightExponents } from "../kx1_format.js";
import { plainRows } from "../kx1_inputs.js";
import { madeExpert, selfTest } from "../selftest.js";
import { Kx1Instance } from "./instance.js";

/** @import { ComputeCall, ExpertWeights } from "../kernel_types.js" */
/** @import { LoadedExpert } from "./instance.js" */

/** @typedef {"kx1_relaxed16" | "kx1_relaxed32" | "kx1_simd128"} BuildName */

/** @type {BuildName[]} */
export const BUILDS = ["kx1_relaxed16", "kx1_relaxed32", "kx1_simd128"];

export const NO_SIMD =
    "This browser has no WebAssembly SIMD. Chrome and Edge have it from version 91, Firefox from 89, Safari from 16.4.";

const TRIAL_SHAPE = { dModel: 1024, dFf: 512 };
const TRIAL_ROWS = 16;
const WARM_UP_MS = 60;
const TRIAL_ROUNDS = 5;

/**
 * @param {BuildName} name
 * @returns {Promise<BufferSource>}
 */
async function fetchBuild(name) {
    const response = await fetch(new URL(`./${name}.wasm`, import.meta.url));
    if (!response.ok) throw new KernelError(`${name}.wasm could not be fetched: ${response.status}`);
    return response.arrayBuffer();
}

/**
 * @param {BuildName} name
 * @param {(name: BuildName) => Promise<BufferSource>} [readBuild]
 * @returns {Promise<WebAssembly.Module>}
 * @throws {UnsupportedBrowserError} when this engine does not take it
 */
export async function fetchModule(name, readBuild = fetchBuild) {
    const bytes = await readBuild(name);
    if (!WebAssembly.validate(bytes)) throw new UnsupportedBrowserError(`This browser cannot run ${name}. ${NO_SIMD}`);
    return WebAssembly.compile(bytes);
}

/**
 * The fastest build that is right here. Takes some tenths of a second on the calling thread.
 *
 * @param {{readBuild?: (name: BuildName) => Promise<BufferSource>}} options
 * @returns {Promise<BuildName>}
 * @throws {UnsupportedBrowserError} when the engine takes none, KernelError when all fail their self-test
 */
export async function chooseBuild({ readBuild = fetchBuild }) {
    /** @type {{name: BuildName, ms: number} | null} */
    let best = null;
    /** @type {unknown} */
    let failure = new UnsupportedBrowserError(NO_SIMD);
    for (const name of BUILDS) {
        try {
            const ms = await tryBuild(await fetchModule(name, readBuild));
            if (best === null || ms < best.ms) best = { name, ms };
        } catch (error) {
            if (!(error instanceof UnsupportedBrowserError)) failure = error;
        }
    }
    if (best === null) throw failure;
    return best.name;
}

/**
 * Test a build, run it until it is warm, time it, and test it again.
 *
 * @param {WebAssembly.Module} module
 * @returns {Promise<number>} milliseconds for one row alone and TRIAL_ROWS together
 */
async function tryBuild(module) {
    const kernel = new InlineKernel(await Kx1Instance.of(module));
    await selfTest(kernel);
    const weights = madeExpert({ gate: "Q4_K", up: "Q4_K", down: "Q6_K" }, TRIAL_SHAPE, 1, "plain");
    await kernel.load("trial", weights);
    const rows = packRows(plainRows(TRIAL_ROWS, TRIAL_SHAPE.dModel, 2), TRIAL_SHAPE.dModel);
    const warm = performance.now() + WARM_UP_MS;
    while (performance.now() < warm) kernel.timeOnce(rows);
    let ms = Infinity;
    for (let round = 0; round < TRIAL_ROUNDS; round++) ms = Math.min(ms, kernel.timeOnce(rows));
    await selfTest(kernel);
    return ms;
}

/** A build on the calling thread, as far as `selfTest` and `tryBuild` need it. */
class InlineKernel {
    /** @param {Kx1Instance} instance */
    constructor(instance) {
        this.instance = instance;
        /** @type {Map<string, LoadedExpert>} */
        this.experts = new Map();
    }

    /**
     * @param {string} key
     * @param {ExpertWeights} weights
     */
    async load(key, weights) {
        this.experts.set(key, this.instance.load(weights, weightExponents(weights)));
    }

    /** @param {string} key */
    unload(key) {
        this.instance.unload(this.expert(key));
        this.experts.delete(key);
    }

    /**
     * @param {ComputeCall} call whose pairs of one expert need not lie together
     * @returns {Promise<Float32Array>}
     */
    async compute({ rows, dModel, pairRows, pairKeys }) {
        const rowBytes = packedRowBytes(dModel);
        const out = new Float32Array(pairKeys.length * dModel);
        for (const key of new Set(pairKeys)) {
            const pairs = [...pairKeys.keys()].filter((pair) => pairKeys[pair] === key);
            const own = new Uint8Array(pairs.length * rowBytes);
            const part = new Float32Array(pairs.length * dModel);
            for (const [i, pair] of pairs.entries()) own.set(rowOf(rows, pairRows[pair], rowBytes), i * rowBytes);
            this.instance.compute(this.expert(key), own, part);
            for (const [i, pair] of pairs.entries())
                out.set(part.subarray(i * dModel, (i + 1) * dModel), pair * dModel);
        }
        return out;
    }

    /**
     * @param {Uint32Array} rows
     * @param {number} cols
     */
    encodeRows(rows, cols) {
        return this.instance.packRows(rows, cols);
    }

    /** @param {Uint8Array} rows TRIAL_ROWS of them */
    timeOnce(rows) {
        const expert = this.expert("trial");
        const out = new Float32Array(TRIAL_ROWS * TRIAL_SHAPE.dModel);
        const first = rowOf(rows, 0, packedRowBytes(TRIAL_SHAPE.dModel));
        const start = performance.now();
        this.instance.compute(expert, first, out.subarray(0, TRIAL_SHAPE.dModel));
        this.instance.compute(expert, rows, out);
        return performance.now() - start;
    }

    /** @param {string} key */
    expert(key) {
        const expert = this.experts.get(key);
        if (!expert) throw new KernelError(`expert ${key} is not loaded`);
        return expert;
    }
}

/**
 * @param {Uint8Array} rows
 * @param {number} row
 * @param {number} rowBytes
 */
function rowOf(rows, row, rowBytes) {
    return rows.subarray(row * rowBytes, (row + 1) * rowBytes);
}
