/**
 * The module worker that a contributing page starts: it holds the WebSocket, the storage and the GPU.
 * `tab/client.js` loads it and talks to it in the messages of `messages.js`. It only connects the page to
 * `TabWorker`.
 */

import { TabWorker } from "./tab_worker.js";

/** @import { PageCommand } from "./messages.js" */

const worker = new TabWorker((message) => self.postMessage(message), self.location.origin);
self.addEventListener("message", (/** @type {MessageEvent<PageCommand>} */ event) => worker.hear(event.data));
self.addEventListener("unhandledrejection", (event) => worker.fail(event.reason));
