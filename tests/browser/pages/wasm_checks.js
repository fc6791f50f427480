/**
 * What the tests ask of the WebAssembly kernel inside a browser: vectors, threads, and a worker in a worker.
 *
 * Imported by test_wasm_chromium.py, and by `wasm_worker.js` where the kernel is in a worker, as in the product.
 */

import { KernelLostError } from "/static/kvasir/errors.js";
import { chooseKernel, kernelMemory } from "/static/kvasir/kernels/kernel_choice.js";
import { selfTest } from "/static/kvasir/kernels/selftest.js";
import { BUILDS, fetchModule } from "/static/kvasir/kernels/wasm/builds.js";
import { Kx1Instance } from "/static/kvasir/kernels/wasm/instance.js";
import { createWasmKernel } from "/static/kvasir/kernels/wasm/kernel.js";
import { callAll, differences, goldenExperts } from "./expert_vectors.js";
import { checkVectors } from "./kx1_vectors.js";

/** What differs from the golden vectors, by build. */
export async function vectors() {
    const { cases } = await (await fetch("/golden/kx1/vectors.json")).json();
    const bytes = await (await fetch("/golden/kx1/vectors.bin")).arrayBuffer();
    const told = {};
    for (const name of BUILDS) {
        told[name] = await checkVectors({ cases, bytes }, await Kx1Instance.of(await fetchModule(name)));
    }
    return told;
}

/** The self-test and all golden experts through a kernel on two threads, all in flight at once. */
export async function threads() {
    const kernel = await createWasmKernel({ nThreads: 2 });
    try {
        const { fingerprint } = await selfTest(kernel);
        const experts = await goldenExperts();
        for (const expert of experts) await kernel.load(expert.name, expert.weights);
        const outputs = await Promise.all(experts.map((expert) => kernel.compute(callAll(expert, expert.name))));
        const differing = experts.filter((expert, i) => differences(outputs[i], expert.outputs) > 0);
        return { fingerprint, nExperts: experts.length, differing: differing.map((expert) => expert.name) };
    } finally {
        kernel.close();
    }
}

/** The choice where WebAssembly alone may be taken, twice: the second time it remembers. */
export async function choice() {
    const options = { budgetBytes: 2 ** 27, only: "wasm", remembered: kernelMemory() };
    const first = await chooseKernel(options);
    const record = await kernelMemory().read();
    const second = await chooseKernel(options);
    const told = { backend: first.backend, isSame: second.build === first.build, isKept: record.build === first.build };
    first.close();
    second.close();
    return told;
}

/** What becomes of a kernel whose threads cannot start. */
export async function brokenThreads() {
    const startThread = () => {
        const worker = new Worker("/no_such_worker.js", { type: "module" });
        return {
            port: worker,
            watch: (onError) => (worker.onerror = (event) => onError(event.message || "did not start")),
            stop: () => worker.terminate(),
        };
    };
    try {
        await createWasmKernel({ nThreads: 1, build: "kx1_simd128", startThread });
        return "started";
    } catch (error) {
        return error instanceof KernelLostError ? `lost: ${error.message}` : `${error}`;
    }
}

/** One of these checks, in a module worker of its own. */
export function inWorker(name) {
    const worker = new Worker(new URL("./wasm_worker.js", import.meta.url), { type: "module" });
    return new Promise((resolve, reject) => {
        worker.onmessage = ({ data }) => resolve(data);
        worker.onerror = (event) => reject(new Error(event.message));
        worker.postMessage(name);
    }).finally(() => worker.terminate());
}
