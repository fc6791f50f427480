/**
 * A kernel that is checked again and again while it works, at times and with numbers that nobody can foresee.
 *
 * Made by the tab's session around what `kernel_choice.js` chose: a test at start alone sees a cool device and the
 * engine's first compiler. A kernel that fails a check is lost, as when its device goes away: nothing that it computes
 * is handed out any more, and whoever holds it makes another one.
 */

import { KernelError, KernelLostError, KernelMemoryError } from "../errors.js";
import { CHECK_BYTES, checkKernel } from "./fresh_check.js";
import { expertBytes } from "./kx1_format.js";

/** @import { ComputeCall, ExpertKernel, ExpertWeights } from "./kernel_types.js" */

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
