// What the WebAssembly kernel needs in node in place of a browser: builds from files, and threads.

import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";
import { Worker } from "node:worker_threads";

const BUILDS = new URL("../../frontend/static/kvasir/kernels/wasm/", import.meta.url);

/** The folder of the builds: WASM_BUILDS in the environment names another than the repository's. */
const folder = process.env.WASM_BUILDS ? pathToFileURL(`${process.env.WASM_BUILDS}/`) : BUILDS;

export const readBuild = (name) => readFile(new URL(`${name}.wasm`, folder));

/** A thread as `wasm/kernel.js` wants it; `kill` makes it die of an error. */
export function startThread() {
    const worker = new Worker(new URL("./wasm_node_thread.mjs", import.meta.url));
    const port = { postMessage: (message, transfer) => worker.postMessage(message, transfer), onmessage: null };
    worker.on("message", (data) => port.onmessage?.({ data }));
    return {
        port,
        watch: (onError) => worker.on("error", (error) => onError(error.message)),
        stop: () => worker.terminate(),
        kill: () => worker.postMessage({ kind: "die" }),
    };
}
