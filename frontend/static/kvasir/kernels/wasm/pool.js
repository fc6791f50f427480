/**
 * The threads of the WebAssembly kernel: starts them, sends requests, and settles the replies.
 *
 * Called by `wasm/kernel.js`. Several workers, each with its own instance, memory and experts: this needs no shared
 * memory (so no cross-origin isolation), and gives each thread 4 GB of its own.
 */

import { KernelError, KernelLostError, KernelMemoryError } from "../../errors.js";

/** @import { Port, Reply, Request } from "./thread.js" */

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
