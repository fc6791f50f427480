/**
 * Chooses where a tab computes: on the GPU, in WebAssembly, or each message where it is faster.
 *
 * Called by the tab's worker at start, and after a device was lost. What it hands out has met the self-test. What was
 * measured is remembered, so that the next start is quick.
 */

import { GpuUnavailableError, KernelError, UnsupportedBrowserError } from "../errors.js";
import { BothKernel } from "./both_kernel.js";
import { createGpuKernel } from "./gpu/kernel.js";
import { packedRowBytes, packRows } from "./kx1_format.js";
import { plainRows } from "./kx1_inputs.js";
import { madeExpert, selfTest } from "./selftest.js";
import { NO_SIMD } from "./wasm/builds.js";
import { createWasmKernel } from "./wasm/kernel.js";

/** @import { ComputeCall, ExpertKernel, ExpertWeights } from "./kernel_types.js" */
/** @import { GpuKernel } from "./gpu/backend.js" */
/** @import { BuildName } from "./wasm/builds.js" */
/** @import { WasmKernel, WasmKernelOptions } from "./wasm/kernel.js" */

/**
 * What one start measured, for the next.
 *
 * @typedef {object} KernelRecord
 * @property {{description: string, tunables: {lanes: number, tiledFrom: number}} | null} gpu
 * @property {BuildName | null} build
 * @property {number | null} gpuFrom see `gpuFromPairs`
 */

/**
 * @typedef {object} Remembered where the record is kept: `kernelMemory()`, or the tests'
 * @property {() => Promise<KernelRecord | null>} read null when there is none, or none that can be read
 * @property {(record: KernelRecord) => Promise<void>} write
 */

/**
 * @typedef {object} KernelChoiceOptions
 * @property {number} budgetBytes of memory for weights, all told
 * @property {boolean} [software] take a software adapter too, and then the GPU alone: for tests
 * @property {"webgpu" | "wasm"} [only] leave the other out
 * @property {boolean} [measure] false: the GPU where there is one, without measuring
 * @property {Remembered | null} [remembered]
 * @property {{dModel: number, dFf: number}} [shape] of the experts to come: what is measured
 * @property {(reason: Error) => void} [report] hears why the GPU or WebAssembly cannot be used here
 * @property {Omit<WasmKernelOptions, "maxBytes" | "build">} [wasm]
 * @property {typeof createGpuKernel} [createGpu] another maker than the product's: the tests'
 */

const USUAL_SHAPE = { dModel: 3072, dFf: 1024 };
/** Holding everything twice halves what a tab can hold: the gain must be worth that. */
const WORTH_BOTH = 2;

export const NO_WEBGPU =
    "Chrome and Edge have WebGPU from version 113, Safari from 26, Firefox from 141 on Windows and from 145 on macOS.";

/**
 * @param {KernelChoiceOptions} options
 * @returns {Promise<ExpertKernel>}
 * @throws {UnsupportedBrowserError} with neither WebGPU nor WebAssembly SIMD; the message says which browsers have them
 * @throws {KernelError} when what there is computes wrongly
 */
export async function chooseKernel(options) {
    const record = (await options.remembered?.read()) ?? null;
    const found = await findKernels(options, record);
    for (const reason of found.reasons) options.report?.(reason);
    const { gpu, wasm } = found;
    if (!gpu && !wasm) throw noKernel(found.reasons);
    if (!gpu || !wasm) {
        const only = /** @type {ExpertKernel} */ (gpu ?? wasm);
        await remember(options, found, null);
        return only;
    }
    const gpuFrom = await gpuFromPairs(options, found, record);
    await remember(options, found, gpuFrom);
    return composed(gpu, wasm, gpuFrom, options.budgetBytes);
}

/**
 * @typedef {object} Found
 * @property {GpuKernel | null} gpu
 * @property {WasmKernel | null} wasm
 * @property {KernelError[]} reasons why one of them is not there
 */

/**
 * The kernels that work here; both have met the self-test.
 *
 * @param {KernelChoiceOptions} options
 * @param {KernelRecord | null} record
 * @returns {Promise<Found>}
 */
async function findKernels(options, record) {
    /** @type {Found} */
    const found = { gpu: null, wasm: null, reasons: [] };
    if (options.only !== "wasm") found.gpu = await orReason(found, () => findGpu(options, record));
    const isGpuAlone = options.only === "webgpu" || (options.software && found.gpu);
    if (!isGpuAlone) found.wasm = await orReason(found, () => findWasm(options, record));
    return found;
}

/**
 * @template T
 * @param {Found} found
 * @param {() => Promise<T>} find
 * @returns {Promise<T | null>}
 */
async function orReason(found, find) {
    try {
        return await find();
    } catch (error) {
        if (!(error instanceof KernelError)) throw error;
        found.reasons.push(error);
        return null;
    }
}

/**
 * @param {KernelChoiceOptions} options
 * @param {KernelRecord | null} record
 */
async function findGpu({ budgetBytes, software = false, createGpu = createGpuKernel }, record) {
    const known = record?.gpu ?? null;
    const wanted = { software, maxBytes: budgetBytes };
    const kernel = await createGpu({ ...wanted, tunables: known?.tunables ?? null });
    if (!known || kernel.description === known.description) return kernel;
    kernel.close(); // another device than the one that was measured
    return createGpu(wanted);
}

/**
 * @param {KernelChoiceOptions} options
 * @param {KernelRecord | null} record
 */
async function findWasm({ budgetBytes, wasm }, record) {
    const options = { ...wasm, maxBytes: budgetBytes };
    try {
        return await testedWasm({ ...options, build: record?.build ?? undefined });
    } catch (error) {
        if (!record?.build) throw error;
        return testedWasm(options); // the browser changed since
    }
}

/** @param {WasmKernelOptions} options */
async function testedWasm(options) {
    const kernel = await createWasmKernel(options);
    try {
        await selfTest(kernel);
        await selfTest(kernel); // by now the engine has compiled it anew
    } catch (error) {
        kernel.close();
        throw error;
    }
    return kernel;
}

/**
 * From how many pairs on a message goes to the GPU: 0 is every one, Infinity none; between them lies what is worth
 * holding the weights twice.
 *
 * @param {KernelChoiceOptions} options
 * @param {Found} found
 * @param {KernelRecord | null} record
 * @returns {Promise<number>}
 */
async function gpuFromPairs({ measure = true, shape = USUAL_SHAPE }, { gpu, wasm }, record) {
    if (!measure || !gpu || !wasm) return 0;
    const isSame = record?.gpu?.description === gpu.description && record.build === wasm.build;
    if (isSame && record.gpuFrom !== null) return record.gpuFrom;
    return crossing(await measureKernel(gpu, shape), await measureKernel(wasm, shape));
}

/**
 * @param {Times} gpu
 * @param {Times} wasm
 * @returns {number} see `gpuFromPairs`
 */
export function crossing(gpu, wasm) {
    const largest = /** @type {number} */ (MEASURED_PAIRS.at(-1));
    if (gpu[largest] > wasm[largest]) return Infinity;
    const slow = MEASURED_PAIRS.filter((n) => gpu[n] > WORTH_BOTH * wasm[n]);
    const last = slow.at(-1);
    if (last === undefined) return 0;
    return MEASURED_PAIRS.find((n) => n > last) ?? Infinity;
}

/**
 * @param {GpuKernel} gpu
 * @param {WasmKernel} wasm
 * @param {number} gpuFrom
 * @param {number} budgetBytes
 * @returns {ExpertKernel}
 */
function composed(gpu, wasm, gpuFrom, budgetBytes) {
    if (gpuFrom === 0) {
        wasm.close();
        return gpu;
    }
    if (gpuFrom === Infinity) {
        gpu.close();
        return wasm;
    }
    return new BothKernel(gpu, wasm, gpuFrom, budgetBytes);
}

/**
 * @param {KernelChoiceOptions} options
 * @param {Found} found
 * @param {number | null} gpuFrom
 */
async function remember({ remembered, software }, { gpu, wasm }, gpuFrom) {
    if (!remembered || software) return;
    await remembered.write({
        gpu: gpu && { description: gpu.description, tunables: gpu.tunables },
        build: wasm?.build ?? null,
        gpuFrom: gpuFrom,
    });
}

/** @param {KernelError[]} reasons */
function noKernel(reasons) {
    const faults = reasons.filter((r) => !(r instanceof GpuUnavailableError || r instanceof UnsupportedBrowserError));
    if (faults.length) return faults[0];
    return new UnsupportedBrowserError(`${NO_SIMD} ${NO_WEBGPU}`);
}

/** Pairs of a message: one row of one expert; a token's; a batch's. */
export const MEASURED_PAIRS = /** @type {const} */ ([1, 8, 64]);

const N_EXPERTS = 8;
const ROUNDS = 3;
const WARM_UP_MS = 50;

/**
 * Milliseconds of a call of each number of pairs.
 *
 * @typedef {Record<number, number>} Times
 */

/**
 * @param {ExpertKernel} kernel with room for eight experts, else fewer are loaded
 * @param {{dModel: number, dFf: number}} shape
 * @returns {Promise<Times>}
 */
export async function measureKernel(kernel, shape) {
    const weights = madeExpert({ gate: "Q4_K", up: "Q4_K", down: "Q6_K" }, shape, 1, "plain");
    const rows = packRows(plainRows(N_EXPERTS, shape.dModel, 2), shape.dModel);
    const keys = await loadCopies(kernel, weights);
    try {
        /** @type {Times} */
        const times = {};
        for (const n of MEASURED_PAIRS) times[n] = await timeCall(kernel, callOf(n, rows, shape.dModel, keys));
        return times;
    } finally {
        for (const key of keys) kernel.unload(key);
    }
}

/**
 * The same expert under as many keys as there is room for, eight at most and one at least.
 *
 * @param {ExpertKernel} kernel
 * @param {ExpertWeights} weights
 * @returns {Promise<string[]>}
 */
async function loadCopies(kernel, weights) {
    const nBytes = weights.gate.length + weights.up.length + weights.down.length;
    const room = Math.floor((kernel.capacityBytes - kernel.loadedBytes) / (2 * nBytes));
    const keys = Array.from({ length: Math.max(1, Math.min(N_EXPERTS, room)) }, (_, i) => `measured ${i}`);
    for (const key of keys) await kernel.load(key, weights);
    return keys;
}

/**
 * @param {number} nPairs
 * @param {Uint8Array} rows eight of them
 * @param {number} dModel
 * @param {string[]} keys
 * @returns {ComputeCall}
 */
function callOf(nPairs, rows, dModel, keys) {
    const nRows = rows.length / packedRowBytes(dModel);
    const pairRows = Uint32Array.from({ length: nPairs }, (_, pair) => Math.floor(pair / keys.length) % nRows);
    const pairKeys = Array.from(pairRows, (_, pair) => keys[pair % keys.length]);
    return { rows, nRows, dModel, pairRows, pairKeys };
}

/**
 * The best of some rounds, once the engine or driver is warm.
 *
 * @param {ExpertKernel} kernel
 * @param {ComputeCall} call
 */
async function timeCall(kernel, call) {
    const warm = performance.now() + WARM_UP_MS;
    do await kernel.compute(call);
    while (performance.now() < warm);
    let best = Infinity;
    for (let round = 0; round < ROUNDS; round++) {
        const start = performance.now();
        await kernel.compute(call);
        best = Math.min(best, performance.now() - start);
    }
    return best;
}

const DATABASE = "kvasir-kernels";
const STORE = "records";
const KEY = "kx1 1"; // another version measures anew

/**
 * @param {IDBFactory} [factory]
 * @returns {Remembered}
 */
export function kernelMemory(factory = globalThis.indexedDB) {
    return {
        read: async () => {
            try {
                return (await transact(factory, "readonly", (store) => store.get(KEY))) ?? null;
            } catch {
                return null;
            }
        },
        write: async (record) => {
            try {
                await transact(factory, "readwrite", (store) => store.put(record, KEY));
            } catch {
                // private windows of some browsers keep nothing
            }
        },
    };
}

/**
 * @param {IDBFactory} factory
 * @param {IDBTransactionMode} mode
 * @param {(store: IDBObjectStore) => IDBRequest} act
 * @returns {Promise<KernelRecord | undefined>} what the request gave
 */
async function transact(factory, mode, act) {
    const database = await open(factory);
    try {
        return await settled(act(database.transaction(STORE, mode).objectStore(STORE)));
    } finally {
        database.close();
    }
}

/**
 * @param {IDBFactory} factory
 * @returns {Promise<IDBDatabase>}
 */
function open(factory) {
    const request = factory.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    return settled(request);
}

/**
 * @template T
 * @param {IDBRequest<T>} request
 * @returns {Promise<T>}
 */
function settled(request) {
    return new Promise((resolve, reject) => {
        request.onsuccess = () => resolve(request.result);
        request.onerror = () => reject(request.error);
    });
}
