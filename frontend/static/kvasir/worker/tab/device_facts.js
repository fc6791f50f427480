/**
 * What this browser and device can do for a contributing tab: adapter, WebAssembly, memory, disk.
 * `tab_worker.js` looks before anything is offered to the visitor; `budget.js` reckons with the result. It opens no GPU
 * device and downloads nothing but a few KB of kernel.
 */

import { UnsupportedBrowserError } from "../../errors.js";
import { describe, isSoftwareAdapter } from "../../kernels/gpu/device.js";
import { fetchModule } from "../../kernels/wasm/builds.js";

/** @import { DeviceFacts } from "./messages.js" */

const GIB = 2 ** 30;
/** WebGPU does not say how much memory a GPU has; what one process may take is the browser's to refuse. */
const GPU_BYTES_MOST = 16 * GIB;
const SMALL_BUFFER_BYTES = 256 * 2 ** 20; // an adapter with no larger buffers than the least is a small device
const SMALL_GPU_BYTES = 2 * GIB;

/** @typedef {Navigator & {deviceMemory?: number, userAgentData?: {mobile: boolean}}} RichNavigator */

/** @param {boolean} software the test switch that allows a software adapter @returns {Promise<DeviceFacts>} */
export async function lookAtDevice(software) {
    const { deviceMemory, userAgentData } = /** @type {RichNavigator} */ (navigator);
    const { hardwareConcurrency, userAgent, storage } = navigator;
    const adapter = (await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" })) ?? null;
    const isSoftware = adapter !== null && isSoftwareAdapter(adapter);
    const hasWebGpu = adapter !== null && (software || !isSoftware);
    const { quota = 0, usage = 0 } = (await storage?.estimate?.()) ?? {};
    return {
        hasWebGpu,
        hasWasmSimd: await hasWasmSimd(),
        adapter: adapter === null ? "" : describe(adapter),
        isSoftwareAdapter: isSoftware,
        gpuBytesMost: hasWebGpu ? gpuBytesMost(adapter) : 0,
        memoryBytes: (deviceMemory ?? 0) * GIB,
        diskFreeBytes: Math.max(0, quota - usage),
        isDiskKept: (await storage?.persisted?.()) ?? false,
        nThreads: hardwareConcurrency || 1,
        isMobile: userAgentData?.mobile ?? /Mobi|Android|iPhone|iPad/.test(userAgent),
    };
}

/** The operating system, as the market lists it. */
export function operatingSystem() {
    const known = ["Windows", "Android", "iPhone", "iPad", "Mac OS", "CrOS", "Linux"];
    return known.find((name) => navigator.userAgent.includes(name)) ?? "";
}

/** @param {GPUAdapter} adapter */
function gpuBytesMost(adapter) {
    return adapter.limits.maxBufferSize <= SMALL_BUFFER_BYTES ? SMALL_GPU_BYTES : GPU_BYTES_MOST;
}

async function hasWasmSimd() {
    try {
        await fetchModule("kx1_simd128");
        return true;
    } catch (error) {
        if (error instanceof UnsupportedBrowserError) return false;
        throw error;
    }
}
