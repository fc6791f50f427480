/**
 * What tests/browser/test_gpu_kernel.py asks of `checked_kernel.js` in a page: the GPU beside WebAssembly, right and wrong.
 */

import { checkKernel } from "/static/kvasir/kernels/checked_kernel.js";
import { createGpuKernel } from "/static/kvasir/kernels/gpu/kernel.js";

/** What checks of the GPU say: a right one, and one that errs with fresh numbers alone. */
export async function checkGpu() {
    const gpu = await createGpuKernel({ software: true, maxBytes: 16 * 1024 * 1024 });
    const said = [await outcomeOf(gpu)];
    const compute = gpu.compute.bind(gpu);
    gpu.compute = async (call) => {
        const outputs = await compute(call);
        if (call.pairKeys[0].startsWith("fresh")) new Uint32Array(outputs.buffer)[1000] ^= 1;
        return outputs;
    };
    said.push(await outcomeOf(gpu), gpu.loadedBytes);
    gpu.close();
    return said;
}

async function outcomeOf(kernel) {
    return checkKernel(kernel, 123456789).then(
        () => "right",
        (error) => `${error.name}: ${error.message}`,
    );
}
