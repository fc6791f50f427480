// One thread of the WebAssembly kernel in node: the same code as in a browser's worker, behind node's port.

import { parentPort } from "node:worker_threads";
import { serve } from "/static/kvasir/kernels/wasm/thread.js";

const port = { postMessage: (message, transfer) => parentPort.postMessage(message, transfer), onmessage: null };
serve(port);
parentPort.on("message", (data) => {
    if (data.kind === "die") throw new Error("the thread was told to die");
    port.onmessage({ data });
});
