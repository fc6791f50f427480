/**
 * A WebGPU device for the kernel: the adapter, the limits asked of it, and what is said when it goes away.
 *
 * Called by `gpu/kernel.js`. It never takes a software adapter unless it is told to: WebAssembly is faster than that.
 */

import { GpuUnavailableError } from "../../errors.js";

const MIB = 1024 * 1024;
/** What every device with WebGPU allows: binding more than this in one piece is never needed. */
export const ARENA_BYTES = 128 * MIB;
const SOFTWARE = /swiftshader|llvmpipe|lavapipe|software|basic render/i;

/**
 * @typedef {object} GpuDevice
 * @property {GPUDevice} device
 * @property {string} description one line for people and logs
 * @property {boolean} isSoftware
 * @property {number} arenaBytes the most that one buffer of weights may have
 * @property {Promise<string>} lost resolves with the reason when it is gone, never after `device.destroy()`
 */

/**
 * Open a device of its own. Throws GpuUnavailableError, which says why, where there is none that is worth it.
 *
 * @param {{adapter?: GPUAdapter | null, software: boolean}} wanted `adapter`: take this one (it serves once)
 * @returns {Promise<GpuDevice>}
 */
export async function openGpuDevice({ adapter, software }) {
    const taken = adapter ?? (await findAdapter());
    const isSoftware = isSoftwareAdapter(taken);
    if (isSoftware && !software) {
        throw new GpuUnavailableError(`${describe(taken)} is a software adapter; WebAssembly is faster`);
    }
    const device = await requestDevice(taken);
    return {
        device,
        description: describe(taken),
        isSoftware,
        arenaBytes: Math.min(device.limits.maxStorageBufferBindingSize, device.limits.maxBufferSize, ARENA_BYTES),
        lost: new Promise((resolve) => {
            void device.lost.then((told) => {
                if (told.reason !== "destroyed") resolve(told.message || "the GPU device was lost");
            });
        }),
    };
}

/** @returns {Promise<GPUAdapter>} */
async function findAdapter() {
    if (!globalThis.navigator?.gpu) throw new GpuUnavailableError("this browser has no WebGPU");
    const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
    if (!adapter) throw new GpuUnavailableError("WebGPU finds no adapter on this device");
    return adapter;
}

/**
 * The default limits are all that the shaders need; larger buffers than 128 MiB are not asked for.
 *
 * @param {GPUAdapter} adapter
 */
async function requestDevice(adapter) {
    try {
        return await adapter.requestDevice({ label: "kvasir experts" });
    } catch (error) {
        throw new GpuUnavailableError(`${describe(adapter)} gives no device: ${String(error)}`);
    }
}

/** @param {GPUAdapter} adapter */
export function isSoftwareAdapter(adapter) {
    const { info } = adapter;
    const said = `${info.vendor} ${info.architecture} ${info.device} ${info.description}`;
    return info.isFallbackAdapter || SOFTWARE.test(said);
}

/** @param {GPUAdapter} adapter */
export function describe({ info }) {
    const parts = [info.vendor, info.architecture, info.description || info.device];
    return parts.filter((part) => part).join(" ") || "an unnamed GPU";
}
