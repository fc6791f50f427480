/**
 * A kernel that is checked again and again while it works, at times and with numbers that nobody can foresee.
 *
 * Made by the tab's session around what `kernel_choice.js` chose: a test at start alone sees a cool device and the
 * engine's first compiler. A kernel that fails a check is lost, as when its device goes away: nothing that it computes
 * is handed out any more, and whoever holds it makes another one.
 */

import { KernelError, KernelLostError, KernelMemoryError, UnsupportedBrowserError } from "../errors.js";
import { BothKernel } from "./both_kernel.js";
import { expertBytes, packedRowBytes, packRows, weightExponents } from "./kx1_format.js";
import { adversarialRows, legalPackedRows, plainRows } from "./kx1_inputs.js";
import { madeExpert, SELF_TEST_CASES, SELF_TEST_SHAPE, selfTest } from "./selftest.js";
import { fetchModule } from "./wasm/builds.js";
import { Kx1Instance } from "./wasm/instance.js";

/** @import { ComputeCall, ExpertKernel, ExpertWeights } from "./kernel_types.js" */
/** @import { BuildName } from "./wasm/builds.js" */

/** Seconds between checks: a random time between these. */
export const LEAST_S = 300;
export const MOST_S = 900;

/**
 * @typedef {object} CheckMeans for tests
 * @property {(seconds: number) => Promise<void>} [sleep]
 * @property {() => number} [random] from 0 to 1, without 1
 * @property {typeof checkKernel} [check]
 */

/** @implements {ExpertKernel} */
export class CheckedKernel {
    /** @param {ExpertKernel} kernel which has met the self-test @param {CheckMeans} [means] */
    constructor(kernel, { sleep = pause, random = Math.random, check = checkKernel } = {}) {
        this.kernel = kernel;
        this.sleep = sleep;
        this.random = random;
        this.check = check;
        this.backend = kernel.backend;
        this.name = kernel.name;
        this.fingerprint = kernel.fingerprint;
        this.description = kernel.description;
        /** Less what a check takes. */
        this.capacityBytes = Math.max(0, kernel.capacityBytes - CHECK_BYTES);
        this.nChecks = 0;
        this.isClosed = false;
        /** What a check found; "" for nothing. */
        this.fault = "";
        /** @type {Map<string, number>} bytes of the experts that others loaded */
        this.loaded = new Map();
        /** @type {Promise<string>} */
        this.lost = Promise.race([kernel.lost, this.untilFault()]);
    }

    get loadedBytes() {
        return [...this.loaded.values()].reduce((sum, nBytes) => sum + nBytes, 0);
    }

    /** @param {string} key @param {ExpertWeights} weights */
    async load(key, weights) {
        const [needed, available] = [expertBytes(weights), this.capacityBytes - this.loadedBytes];
        if (needed > available) throw new KernelMemoryError(needed, available);
        await this.kernel.load(key, weights);
        this.loaded.set(key, needed);
    }

    /** @param {string} key */
    unload(key) {
        this.loaded.delete(key);
        this.kernel.unload(key);
    }

    /** @param {ComputeCall} call @returns {Promise<Float32Array>} */
    async compute(call) {
        const outputs = this.fault ? null : await this.kernel.compute(call);
        if (this.fault || outputs === null) throw new KernelLostError(this.fault);
        return outputs;
    }

    close() {
        this.isClosed = true;
        this.kernel.close();
    }

    /** Check at random times; returns what was wrong, and never when the kernel is closed or lost otherwise. */
    async untilFault() {
        for (;;) {
            await this.sleep(LEAST_S + this.random() * (MOST_S - LEAST_S));
            const fault = this.isClosed ? "closed" : await this.faultNow();
            if (this.isClosed) return new Promise(() => undefined);
            this.fault = fault;
            if (fault) return fault;
            this.nChecks++;
        }
    }

    /** "" or what is wrong. */
    async faultNow() {
        try {
            await this.check(this.kernel, Math.floor(this.random() * 2 ** 31));
            return "";
        } catch (error) {
            if (error instanceof KernelLostError) return ""; // `lost` of the kernel itself says so
            if (error instanceof KernelError && !(error instanceof KernelMemoryError)) return error.message;
            console.warn(`a check of the kernel could not be made: ${error}`);
            return "";
        }
    }
}

/** @param {number} seconds @returns {Promise<void>} */
function pause(seconds) {
    return new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
}

/** @typedef {(name: BuildName) => Promise<BufferSource>} ReadBuild */

/** What two experts of the self-test take at most, with room for how a device rounds. */
export const CHECK_BYTES = 1024 * 1024;
const WITNESS = "kx1_simd128"; // the build with the least that an engine could get wrong
const KINDS = /** @type {const} */ (["plain", "wild", "high", "low"]);

/**
 * @param {ExpertKernel} kernel
 * @param {number} seed of the fresh expert and rows, any whole number below 2^31
 * @param {ReadBuild} [readBuild] another source of the witness than `fetch`
 * @throws {KernelError} naming what differed; KernelLostError when the kernel was lost meanwhile; Error, of no kind of
 *   its own, when the witness cannot be had
 */
export async function checkKernel(kernel, seed, readBuild) {
    const halves = kernel instanceof BothKernel ? [kernel.gpu, kernel.wasm] : [kernel];
    for (const half of halves) {
        await selfTest(half);
        await compareFresh(half, seed, readBuild);
    }
}

/**
 * @param {ExpertKernel} kernel
 * @param {number} seed
 * @param {ReadBuild} [readBuild]
 */
async function compareFresh(kernel, seed, readBuild) {
    const [gate, up, down] = SELF_TEST_CASES[seed % SELF_TEST_CASES.length].types;
    const weights = madeExpert({ gate, up, down }, SELF_TEST_SHAPE, seed, KINDS[(seed >> 2) % KINDS.length]);
    const rows = freshRows(seed);
    const wanted = await witnessed(weights, rows, readBuild);
    if (wanted === null) return;
    const found = new Uint32Array((await computeAll(kernel, `fresh check ${seed}`, weights, rows)).buffer);
    const place = wanted.findIndex((bits, i) => bits !== found[i]);
    if (place >= 0) {
        throw new KernelError(
            `the kernel gives other bits than WebAssembly for fresh numbers (seed ${seed}, ${gate} ${up} ${down}, value ${place})`,
        );
    }
}

/**
 * Packed rows: usual ones, extreme ones, and such as no quantiser makes.
 *
 * @param {number} seed
 */
function freshRows(seed) {
    const { dModel } = SELF_TEST_SHAPE;
    const parts = [
        packRows(plainRows(8, dModel, seed), dModel),
        packRows(adversarialRows(dModel, seed), dModel),
        legalPackedRows(dModel, seed),
    ];
    const rows = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let end = 0;
    for (const part of parts) {
        rows.set(part, end);
        end += part.length;
    }
    return rows;
}

/**
 * Bits of the outputs by WebAssembly, compiled anew; null where the browser has none.
 *
 * @param {ExpertWeights} weights
 * @param {Uint8Array} rows
 * @param {ReadBuild} [readBuild]
 */
async function witnessed(weights, rows, readBuild) {
    let module;
    try {
        module = await fetchModule(WITNESS, readBuild);
    } catch (error) {
        if (error instanceof UnsupportedBrowserError) return null;
        throw new Error(`${WITNESS} did not come: ${error}`); // not the kernel's fault
    }
    const instance = await Kx1Instance.of(module);
    const outputs = new Float32Array((rows.length / packedRowBytes(weights.dModel)) * weights.dModel);
    instance.compute(instance.load(weights, weightExponents(weights)), rows, outputs);
    return new Uint32Array(outputs.buffer);
}

/**
 * @param {ExpertKernel} kernel
 * @param {string} key
 * @param {ExpertWeights} weights
 * @param {Uint8Array} rows
 */
async function computeAll(kernel, key, weights, rows) {
    const { dModel } = weights;
    const nRows = rows.length / packedRowBytes(dModel);
    const pairRows = Uint32Array.from({ length: nRows }, (_, row) => row);
    try {
        await kernel.load(key, weights);
        return await kernel.compute({ rows, nRows, dModel, pairRows, pairKeys: Array.from(pairRows, () => key) });
    } finally {
        kernel.unload(key);
    }
}
