/**
 * KX1 in WebAssembly, on several threads: an ExpertKernel for browsers without WebGPU, and the GPU's check.
 *
 * Called through `kernel_choice.js`, by the tests and the benchmark. An expert lies in one thread; the pairs of a
 * call are spread over the threads that hold their experts.
 */

import { KernelError, KernelLostError, KernelMemoryError } from "../../errors.js";
import {
    checkCall,
    checkWeights,
    expertBytes,
    KX1_FINGERPRINT,
    KX1_NAME,
    packedRowBytes,
    weightExponents,
} from "../kx1_format.js";
import { chooseBuild, fetchModule } from "./builds.js";

/** @import { ComputeCall, ExpertKernel, ExpertWeights } from "../kernel_types.js" */
/** @import { BuildName } from "./builds.js" */
/** @import { ExpertShare, Port, Reply, Request } from "./thread.js" */

/**
 * @typedef {object} WasmKernelOptions
 * @property {number} [nThreads] by default the processor's, less one, at most 8
 * @property {number} [maxBytes] of weights; by default and at most what the threads can address
 * @property {BuildName} [build] by default the fastest that passes the self-test here
 * @property {() => ThreadHandle} [startThread] another kind of thread than a worker: the tests', in node
 * @property {(name: BuildName) => Promise<BufferSource>} [readBuild] another source of the builds than `fetch`
 */

/** What one thread's 4 GB hold beside its working memory. */
const THREAD_BYTES = 3.5 * 2 ** 30;
const MOST_THREADS = 8;

/** Threads that leave the page a core. */
export function usualThreads() {
    const cores = globalThis.navigator?.hardwareConcurrency ?? 2;
    return Math.max(1, Math.min(MOST_THREADS, cores - 1));
}

/**
 * A kernel whose threads are ready.
 *
 * @param {WasmKernelOptions} [options]
 * @returns {Promise<WasmKernel>}
 * @throws {UnsupportedBrowserError} without WebAssembly SIMD
 * @throws {KernelError} when no build passes its self-test
 */
export async function createWasmKernel(options = {}) {
    const build = options.build ?? (await chooseBuild(options));
    const module = await fetchModule(build, options.readBuild);
    const kernel = new WasmKernel(build, options);
    try {
        await kernel.start(module);
    } catch (error) {
        kernel.close();
        throw error;
    }
    return kernel;
}

/** @implements {ExpertKernel} */
export class WasmKernel {
    /**
     * @param {BuildName} build
     * @param {WasmKernelOptions} options
     */
    constructor(build, { nThreads = usualThreads(), maxBytes = Infinity, startThread = startWorker }) {
        this.backend = /** @type {const} */ ("wasm");
        /** @type {"kx1"} */
        this.name = KX1_NAME;
        this.fingerprint = KX1_FINGERPRINT;
        this.build = build;
        this.description = `${build}, ${nThreads} ${nThreads === 1 ? "thread" : "threads"}`;
        this.capacityBytes = Math.min(maxBytes, nThreads * THREAD_BYTES);
        this.loadedBytes = 0;
        /** @type {Map<string, {thread: PooledThread, nBytes: number, dModel: number}>} */
        this.places = new Map();
        /** @type {Promise<string>} */
        this.lost = new Promise((resolve) => (this.reportLost = resolve));
        this.threads = Array.from({ length: nThreads }, () => new PooledThread(startThread(), (why) => this.lose(why)));
    }

    /** @param {WebAssembly.Module} module */
    async start(module) {
        await Promise.all(this.threads.map((thread) => thread.ask({ kind: "start", module })));
    }

    /**
     * @param {string} key
     * @param {ExpertWeights} weights
     */
    async load(key, weights) {
        checkWeights(weights);
        if (this.places.has(key)) throw new KernelError(`expert ${key} is loaded already`);
        const exponents = weightExponents(weights);
        const nBytes = expertBytes(weights);
        const available = this.capacityBytes - this.loadedBytes;
        if (nBytes > available) throw new KernelMemoryError(nBytes, available);
        const thread = this.threads.reduce((least, other) => (other.loadedBytes < least.loadedBytes ? other : least));
        const place = { thread, nBytes, dModel: weights.dModel };
        this.places.set(key, place);
        this.count(thread, nBytes);
        try {
            await thread.ask({ kind: "load", key, weights, exponents });
        } catch (error) {
            if (this.places.get(key) === place) this.unload(key);
            throw error;
        }
    }

    /** @param {string} key */
    unload(key) {
        const place = this.places.get(key);
        if (!place) return;
        this.places.delete(key);
        this.count(place.thread, -place.nBytes);
        place.thread.ask({ kind: "unload", key }).catch(() => {}); // a lost thread holds nothing
    }

    /**
     * @param {ComputeCall} call
     * @returns {Promise<Float32Array>}
     */
    async compute(call) {
        checkCall(call);
        const out = new Float32Array(call.pairKeys.length * call.dModel);
        const parts = this.pairsByThread(call);
        await Promise.all([...parts].map(([thread, pairs]) => this.computePart(thread, pairs, call, out)));
        return out;
    }

    /**
     * The numbers of each thread's pairs, those of one expert together.
     *
     * @param {ComputeCall} call
     * @returns {Map<PooledThread, number[]>}
     */
    pairsByThread({ pairKeys, dModel }) {
        /** @type {Map<string, number[]>} */
        const byKey = new Map();
        pairKeys.forEach((key, pair) => {
            const pairs = byKey.get(key);
            if (pairs) pairs.push(pair);
            else byKey.set(key, [pair]);
        });
        /** @type {Map<PooledThread, number[]>} */
        const byThread = new Map();
        for (const [key, pairs] of byKey) {
            const place = this.places.get(key);
            if (!place) throw new KernelError(`expert ${key} is not loaded`);
            if (place.dModel !== dModel) {
                throw new KernelError(`rows have ${dModel} values; expert ${key} takes ${place.dModel}`);
            }
            byThread.set(place.thread, [...(byThread.get(place.thread) ?? []), ...pairs]);
        }
        return byThread;
    }

    /**
     * @param {PooledThread} thread
     * @param {number[]} pairs
     * @param {ComputeCall} call
     * @param {Float32Array} out of the whole call
     */
    async computePart(thread, pairs, { rows: all, dModel, pairRows, pairKeys }, out) {
        const rowBytes = packedRowBytes(dModel);
        const rows = new Uint8Array(pairs.length * rowBytes);
        /** @type {ExpertShare[]} */
        const shares = [];
        pairs.forEach((pair, i) => {
            const start = pairRows[pair] * rowBytes;
            rows.set(all.subarray(start, start + rowBytes), i * rowBytes);
            const last = shares.at(-1);
            if (last?.key === pairKeys[pair]) last.nRows++;
            else shares.push({ key: pairKeys[pair], nRows: 1 });
        });
        /** @type {Float32Array} */
        const part = await thread.ask({ kind: "compute", dModel, rows, shares }, [rows.buffer]);
        for (const [i, pair] of pairs.entries()) out.set(part.subarray(i * dModel, (i + 1) * dModel), pair * dModel);
    }

    /**
     * Step 1 in WebAssembly, for the self-test: bits of f32 rows [n, cols] to packed rows.
     *
     * @param {Uint32Array} rows
     * @param {number} cols
     * @returns {Promise<Uint8Array>}
     */
    encodeRows(rows, cols) {
        return this.threads[0].ask({ kind: "pack", rows, cols });
    }

    close() {
        for (const thread of this.threads) thread.stop("the kernel was closed");
        this.places.clear();
        this.loadedBytes = 0;
    }

    /** @param {string} reason */
    lose(reason) {
        for (const thread of this.threads) thread.stop(reason);
        this.reportLost?.(reason);
    }

    /**
     * @param {PooledThread} thread
     * @param {number} nBytes
     */
    count(thread, nBytes) {
        thread.loadedBytes += nBytes;
        this.loadedBytes += nBytes;
    }
}

/**
 * @typedef {object} ThreadHandle a thread as whoever starts one gives it
 * @property {Port} port
 * @property {(onError: (reason: string) => void) => void} watch says when the thread has died
 * @property {() => void} stop
 */

/** @typedef {{resolve: (result: any) => void, reject: (error: Error) => void}} Waiting */

/**
 * A dedicated worker of this browser.
 *
 * @returns {ThreadHandle}
 */
export function startWorker() {
    const worker = new Worker(new URL("./thread.js", import.meta.url), { type: "module", name: "kvasir wasm" });
    return {
        port: /** @type {Port} */ (worker),
        watch: (onError) => {
            worker.onerror = (event) => onError(event.message || "a WebAssembly thread could not be started");
            worker.onmessageerror = () => onError("a message to a WebAssembly thread could not be read");
        },
        stop: () => worker.terminate(),
    };
}

/** One thread, and the requests that it has not answered yet. */
export class PooledThread {
    /**
     * @param {ThreadHandle} handle
     * @param {(reason: string) => void} onLost
     */
    constructor(handle, onLost) {
        this.handle = handle;
        this.loadedBytes = 0;
        /** @type {Waiting[]} */
        this.waiting = [];
        /** @type {string | null} */
        this.lostReason = null;
        handle.port.onmessage = (event) => this.settle(event.data);
        handle.watch((reason) => {
            this.stop(reason);
            onLost(reason);
        });
    }

    /**
     * @param {Request} request
     * @param {Transferable[]} [transfer]
     * @returns {Promise<any>} the result of the reply
     */
    ask(request, transfer = []) {
        if (this.lostReason !== null) return Promise.reject(new KernelLostError(this.lostReason));
        return new Promise((resolve, reject) => {
            this.waiting.push({ resolve, reject });
            this.handle.port.postMessage(request, transfer);
        });
    }

    /** @param {Reply} reply */
    settle(reply) {
        const first = this.waiting.shift();
        if (!first) return;
        if (reply.kind === "done") first.resolve(reply.result);
        else if (reply.kind === "no memory") first.reject(new KernelMemoryError(reply.needed, 0));
        else first.reject(new KernelError(reply.message));
    }

    /**
     * End the thread; what it has not answered fails.
     *
     * @param {string} reason
     */
    stop(reason) {
        if (this.lostReason !== null) return;
        this.lostReason = reason;
        this.handle.stop();
        for (const waiting of this.waiting.splice(0)) waiting.reject(new KernelLostError(reason));
    }
}
