/**
 * What can go wrong with an expert kernel in the browser.
 *
 * Thrown by the kernels and by `kernel_choice.js`; told apart by the worker, which answers each differently.
 */

/** A kernel refuses what it was given, or a build is faulty. */
export class KernelError extends Error {
    /** @param {string} message */
    constructor(message) {
        super(message);
        this.name = new.target.name;
    }
}

/** There is no room for an expert. What was loaded before is still there. */
export class KernelMemoryError extends KernelError {
    /**
     * @param {number} needed bytes that were asked for
     * @param {number} available bytes that are left
     */
    constructor(needed, available) {
        super(`no memory for ${needed} bytes of weights: ${available} bytes are left`);
        this.needed = needed;
        this.available = available;
    }
}

/** The device or thread that held the weights is gone: all that was loaded is lost. */
export class KernelLostError extends KernelError {}

/** This device has no GPU that is worth using; the message says why. WebAssembly may still do. */
export class GpuUnavailableError extends KernelError {}

/** This browser has neither WebGPU nor WebAssembly SIMD. The message says which browsers have them. */
export class UnsupportedBrowserError extends KernelError {}
