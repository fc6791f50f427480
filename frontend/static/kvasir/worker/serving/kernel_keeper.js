/**
 * A kernel that survives the loss of its device: another one is made and everything is loaded again. `session.js` makes
 * one; holdings compute with it, `agent/fetch.js` loads slices through it. It waits 2, 10 and 60 s, since browsers give
 * no adapter for a while after a GPU process has died, and then asks for a reload of the page.
 */

import { KernelLostError } from "../../errors.js";
import { sleep } from "../slices/download.js";
import { loadSlice, unloadSlice } from "./holdings.js";

/** @import { ComputeCall, ExpertKernel, ExpertWeights } from "../../kernels/kernel_types.js" */
/** @import { SliceFolder } from "../slices/paths.js" */
/** @import { HeldSlice } from "../slices/store.js" */

/** Seconds before each attempt after losses in a row. */
export const BACK_OFF_S = [2, 10, 60];
const STEADY_S = 600; // a kernel that lasts this long resets the count

/**
 * @typedef {object} KeeperNews
 * @property {(reason: string, retryS: number) => void} onLost computing stops; `retryS`: until the next attempt
 * @property {() => void} onBack everything is loaded again
 * @property {(reason: string) => void} onHopeless the page must be reloaded
 */

/** Implements ExpertKernel. */
export class KernelKeeper {
    /**
     * @param {() => Promise<ExpertKernel>} makeKernel @param {SliceFolder} folder @param {KeeperNews} news
     * @param {{sleep?: typeof sleep, nowS?: () => number}} [means] for tests
     */
    constructor(makeKernel, folder, news, means = {}) {
        this.makeKernel = makeKernel;
        this.folder = folder;
        this.news = news;
        this.sleep = means.sleep ?? sleep;
        this.nowS = means.nowS ?? (() => performance.now() / 1000);
        /** @type {ExpertKernel | null} */
        this.kernel = null;
        /** @type {Map<string, HeldSlice>} loaded slices by name */
        this.slices = new Map();
        this.nLosses = 0;
        this.sinceS = 0;
        this.closing = new AbortController();
        /** @type {"kx1"} */
        this.name = "kx1";
        this.fingerprint = "";
        /** Never resolves: this class handles the loss of a device. @type {Promise<string>} */
        this.lost = new Promise(() => undefined);
    }

    /** Make the first kernel. Throws UnsupportedBrowserError or KernelError. */
    async open() {
        this.take(await this.makeKernel());
    }

    get backend() {
        return this.kernel?.backend ?? "wasm";
    }

    get description() {
        return this.kernel?.description ?? "";
    }

    get loadedBytes() {
        return this.kernel?.loadedBytes ?? 0;
    }

    get capacityBytes() {
        return this.kernel?.capacityBytes ?? 0;
    }

    /** @param {string} key @param {ExpertWeights} weights */
    async load(key, weights) {
        await this.present().load(key, weights);
    }

    /** @param {string} key */
    unload(key) {
        this.kernel?.unload(key);
    }

    /** @param {ComputeCall} call @returns {Promise<Float32Array>} */
    async compute(call) {
        return this.present().compute(call);
    }

    /**
     * Load every expert of a slice, now and after every loss of a device. Throws KernelError.
     * @param {HeldSlice} held
     */
    async loadSlice(held) {
        await loadSlice(this.present(), this.folder, held);
        this.slices.set(held.name, held);
    }

    /** @param {HeldSlice} held */
    unloadSlice(held) {
        this.slices.delete(held.name);
        unloadSlice(this, held);
    }

    /** Free everything, for good. */
    close() {
        this.closing.abort();
        this.kernel?.close();
        this.kernel = null;
    }

    /** @returns {ExpertKernel} */
    present() {
        if (this.kernel === null) throw new KernelLostError("the GPU was lost; the worker is trying to get it back");
        return this.kernel;
    }

    /** @param {ExpertKernel} kernel */
    take(kernel) {
        if (this.closing.signal.aborted) return kernel.close();
        this.kernel = kernel;
        this.fingerprint = kernel.fingerprint;
        this.sinceS = this.nowS();
        void kernel.lost.then((reason) => this.lostOne(kernel, reason));
    }

    /** @param {ExpertKernel} kernel @param {string} reason */
    async lostOne(kernel, reason) {
        if (this.kernel !== kernel) return; // closed by this side, or lost twice
        this.kernel = null;
        kernel.close();
        if (this.nowS() - this.sinceS > STEADY_S) this.nLosses = 0;
        try {
            await this.recover(reason);
        } catch (error) {
            if (!this.closing.signal.aborted) this.news.onHopeless(String(error));
        }
    }

    /** @param {string} reason */
    async recover(reason) {
        while (this.nLosses < BACK_OFF_S.length) {
            const retryS = BACK_OFF_S[this.nLosses++];
            this.news.onLost(reason, retryS);
            await this.sleep(retryS, this.closing.signal);
            try {
                await this.comeBack();
                return;
            } catch (error) {
                reason = error instanceof Error ? error.message : String(error);
            }
        }
        this.news.onHopeless(reason);
    }

    async comeBack() {
        const kernel = await this.makeKernel();
        try {
            for (const held of this.slices.values()) await loadSlice(kernel, this.folder, held);
        } catch (error) {
            kernel.close();
            throw error;
        }
        this.take(kernel);
        this.news.onBack();
    }
}
