/** Runs one of the checks of wasm_checks.js in a module worker, where the product's kernel lives. */

import * as checks from "./wasm_checks.js";

self.onmessage = async ({ data: name }) => {
    self.postMessage(await checks[name]());
};
