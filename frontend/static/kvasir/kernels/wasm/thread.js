/**
 * One thread of the WebAssembly kernel: a worker with an instance and experts of its own.
 *
 * Started by `wasm/kernel.js`, which alone talks to it. Requests are answered in order, one reply each. It never
 * decides anything: what to hold and what to compute is said by the pool.
 */

import { KernelMemoryError } from "../../errors.js";
import { Kx1Instance } from "./instance.js";

/** @import { ExpertWeights } from "../kernel_types.js" */
/** @import { LoadedExpert } from "./instance.js" */

/**
 * @typedef {{kind: "start", module: WebAssembly.Module}} StartRequest first of all
 * @typedef {{kind: "load", key: string, weights: ExpertWeights, exponents: number[]}} LoadRequest
 * @typedef {{kind: "unload", key: string}} UnloadRequest
 * @typedef {{key: string, nRows: number}} ExpertShare so many of the rows, one after another
 * @typedef {{kind: "compute", dModel: number, rows: Uint8Array, shares: ExpertShare[]}} ComputeRequest
 * @typedef {{kind: "pack", rows: Uint32Array, cols: number}} PackRequest
 * @typedef {StartRequest | LoadRequest | UnloadRequest | ComputeRequest | PackRequest} Request
 *
 * @typedef {{kind: "done", result: Float32Array | Uint8Array | null}} DoneReply
 * @typedef {{kind: "no memory", needed: number}} MemoryReply
 * @typedef {{kind: "failed", message: string}} FailedReply
 * @typedef {DoneReply | MemoryReply | FailedReply} Reply
 */

/** What a thread and its pool talk through: a Worker, its global scope, or a MessagePort. */
/**
 * @typedef {object} Port
 * @property {(message: any, transfer: Transferable[]) => void} postMessage
 * @property {((event: any) => void) | null} onmessage
 */

export class WasmThread {
    constructor() {
        /** @type {Map<string, LoadedExpert>} */
        this.experts = new Map();
    }

    /**
     * @param {Request} request
     * @returns {Promise<Float32Array | Uint8Array | null>}
     */
    async answer(request) {
        switch (request.kind) {
            case "start":
                this.instance = await Kx1Instance.of(request.module);
                return null;
            case "load":
                this.experts.set(request.key, this.started().load(request.weights, request.exponents));
                return null;
            case "unload":
                return this.unload(request.key);
            case "compute":
                return this.compute(request);
            case "pack":
                return this.started().packRows(request.rows, request.cols);
        }
    }

    /** @returns {Kx1Instance} */
    started() {
        if (!this.instance) throw new Error("the thread has no instance: the first request must be start");
        return this.instance;
    }

    /** @param {string} key */
    unload(key) {
        const expert = this.experts.get(key);
        if (expert) this.started().unload(expert);
        this.experts.delete(key);
        return null;
    }

    /**
     * @param {ComputeRequest} request
     * @returns {Float32Array} [rows, dModel], in the order of the rows
     */
    compute({ dModel, rows, shares }) {
        const nRows = shares.reduce((sum, share) => sum + share.nRows, 0);
        const rowBytes = rows.length / nRows;
        const out = new Float32Array(nRows * dModel);
        let row = 0;
        for (const { key, nRows: n } of shares) {
            const expert = this.experts.get(key);
            if (!expert) throw new Error(`expert ${key} is not in this thread`);
            const part = rows.subarray(row * rowBytes, (row + n) * rowBytes);
            this.started().compute(expert, part, out.subarray(row * dModel, (row + n) * dModel));
            row += n;
        }
        return out;
    }
}

/**
 * Answer what comes in through a port, for as long as it is open.
 *
 * @param {Port} port
 */
export function serve(port) {
    const thread = new WasmThread();
    let last = Promise.resolve();
    port.onmessage = (event) => {
        last = last.then(() => reply(port, thread, event.data));
    };
}

/**
 * @param {Port} port
 * @param {WasmThread} thread
 * @param {Request} request
 */
async function reply(port, thread, request) {
    try {
        const result = await thread.answer(request);
        port.postMessage({ kind: "done", result }, result ? [/** @type {ArrayBuffer} */ (result.buffer)] : []);
    } catch (error) {
        if (error instanceof KernelMemoryError) port.postMessage({ kind: "no memory", needed: error.needed }, []);
        else port.postMessage({ kind: "failed", message: error instanceof Error ? error.message : `${error}` }, []);
    }
}

if (typeof WorkerGlobalScope !== "undefined" && globalThis instanceof WorkerGlobalScope && isOwnWorker()) {
    serve(/** @type {Port} */ (/** @type {unknown} */ (globalThis)));
}

/** Whether this module is what the worker was started with, rather than one that something else imported. */
function isOwnWorker() {
    return globalThis.location.pathname === new URL(import.meta.url).pathname;
}
