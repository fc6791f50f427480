/**
 * A kernel that holds every expert twice, on the GPU and in WebAssembly, and computes each message where it is faster.
 *
 * Made by `kernel_choice.js` where the two differ enough to be worth the memory. Both give the same bits, so nobody
 * can tell which of them answered.
 */

import { KernelMemoryError } from "../errors.js";
import { expertBytes, KX1_FINGERPRINT, KX1_NAME } from "./kx1_format.js";

/** @import { ComputeCall, ExpertKernel, ExpertWeights } from "./kernel_types.js" */

/** @implements {ExpertKernel} */
export class BothKernel {
    /**
     * @param {ExpertKernel} gpu
     * @param {ExpertKernel} wasm
     * @param {number} gpuFrom messages of so many pairs, and of more, go to the GPU
     * @param {number} budgetBytes of memory for weights, for both together
     */
    constructor(gpu, wasm, gpuFrom, budgetBytes) {
        this.backend = /** @type {const} */ ("both");
        /** @type {"kx1"} */
        this.name = KX1_NAME;
        this.fingerprint = KX1_FINGERPRINT;
        this.description = `${gpu.description}; below ${gpuFrom} pairs ${wasm.description}`;
        this.gpu = gpu;
        this.wasm = wasm;
        this.gpuFrom = gpuFrom;
        this.capacityBytes = Math.min(gpu.capacityBytes, wasm.capacityBytes, Math.floor(budgetBytes / 2));
        this.lost = Promise.race([gpu.lost, wasm.lost]);
    }

    /** Of weights, counted once. */
    get loadedBytes() {
        return Math.max(this.gpu.loadedBytes, this.wasm.loadedBytes);
    }

    /**
     * @param {string} key
     * @param {ExpertWeights} weights
     */
    async load(key, weights) {
        const available = this.capacityBytes - this.loadedBytes;
        if (expertBytes(weights) > available) throw new KernelMemoryError(expertBytes(weights), available);
        await this.wasm.load(key, weights);
        try {
            await this.gpu.load(key, weights);
        } catch (error) {
            this.wasm.unload(key);
            throw error;
        }
    }

    /** @param {string} key */
    unload(key) {
        this.gpu.unload(key);
        this.wasm.unload(key);
    }

    /**
     * @param {ComputeCall} call
     * @returns {Promise<Float32Array>}
     */
    compute(call) {
        return (call.pairKeys.length < this.gpuFrom ? this.wasm : this.gpu).compute(call);
    }

    close() {
        this.gpu.close();
        this.wasm.close();
    }
}
