/** Runs one of the checks of wasm_checks.js in a module worker, where the product's kernel lives. */

self.onmessage = async ({ data: name }) => {
    const checks = await import("./wasm_checks.js");
    self.postMessage(await checks[name]());
};
