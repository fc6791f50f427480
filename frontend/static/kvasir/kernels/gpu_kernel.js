/**
 * KX1 on a GPU by WebGPU: implements ExpertKernel of `kernel_types.js`.
 *
 * Called by `kernel_choice.js`. Weights lie in arenas on the device, and several calls are under way at once. A kernel
 * that is handed out has met the self-test; a device that computes anything else is refused.
 */

import { GpuUnavailableError, KernelError, KernelLostError, KernelMemoryError } from "./errors.js";
import { GpuArenas } from "./gpu_arenas.js";
import { openGpuDevice } from "./gpu_device.js";
import { submitChunk } from "./gpu_encoder.js";
import { LoadedExpert, layOut, mapMatrices } from "./gpu_experts.js";
import { planCall } from "./gpu_plan.js";
import { GpuPrograms, dotVariants, readSources } from "./gpu_programs.js";
import { SlotSets } from "./gpu_slot_sets.js";
import { KX1_FINGERPRINT, MATRICES, QUANT_TYPES, checkCall, checkWeights, expertBytes, weightExponents } from "./kx1_format.js";
import { selfTest } from "./selftest.js";

/** @import { ComputeCall, ExpertWeights, QuantType } from "./kernel_types.js" */
/** @import { Chunk, GpuExpert } from "./gpu_plan.js" */
/** @import { DotVariant, GpuSources } from "./gpu_programs.js" */
/** @import { GpuDevice } from "./gpu_device.js" */

const BUFFER_BYTES = 32 * 1024 * 1024; // of a chunk's widest buffer
const MAX_WORK = 2 ** 31; // weights times pairs of a submission: well below a second on the slowest real GPU
const MAX_SOFTWARE_WORK = 2 ** 27;
const READ = 1; // GPUMapMode.READ

/**
 * What may be measured on a device; no choice changes a bit.
 *
 * @typedef {{lanes: number, tiledFrom: number}} GpuTunables
 */

/** @type {GpuTunables} */
export const DEFAULT_TUNABLES = { lanes: 4, tiledFrom: 16 };

/**
 * @typedef {object} GpuKernelOptions
 * @property {GPUAdapter | null} [adapter] take this one; it serves once
 * @property {boolean} software take a software adapter too (tests)
 * @property {number} maxBytes of weights, at most
 * @property {number} [nInFlight] chunks under way at once
 * @property {GpuTunables} [tunables]
 */

/**
 * A kernel that met the self-test. Throws GpuUnavailableError where there is no GPU, KernelError where it miscomputes.
 *
 * @param {GpuKernelOptions} options
 * @returns {Promise<GpuKernel>}
 */
export async function createGpuKernel(options) {
    const sources = await readSources();
    const opened = await openGpuDevice({ adapter: options.adapter, software: options.software });
    /** @type {unknown} */
    let problem = null;
    for (const dot of dotVariants()) {
        const kernel = new GpuKernel(opened, sources, dot, options);
        try {
            await kernel.compile();
            await selfTest(kernel);
            return kernel;
        } catch (error) {
            problem ??= error;
            kernel.freeBuffers();
        }
    }
    opened.device.destroy();
    if (problem instanceof KernelLostError) throw new GpuUnavailableError(`${opened.description}: ${problem.message}`);
    throw problem;
}

/** Made by `createGpuKernel`. */
export class GpuKernel {
    backend = /** @type {const} */ ("webgpu");
    name = /** @type {const} */ ("kx1");
    fingerprint = KX1_FINGERPRINT;
    loadedBytes = 0;

    /** @type {Map<string, LoadedExpert>} */
    #experts = new Map();
    #lostReason = "";

    /**
     * @param {GpuDevice} opened
     * @param {GpuSources} sources
     * @param {DotVariant} dot
     * @param {GpuKernelOptions} options
     */
    constructor(opened, sources, dot, { maxBytes, nInFlight = 2, tunables = DEFAULT_TUNABLES }) {
        this.device = opened.device;
        this.description = `${opened.description}, ${dot}, ${tunables.lanes} lanes, tiled from ${tunables.tiledFrom}`;
        this.isSoftware = opened.isSoftware;
        this.tunables = tunables;
        this.capacityBytes = maxBytes;
        this.limits = {
            ...tunables,
            maxWork: opened.isSoftware ? MAX_SOFTWARE_WORK : MAX_WORK,
            bufferBytes: Math.min(BUFFER_BYTES, opened.arenaBytes),
        };
        this.programs = new GpuPrograms(opened.device, sources, dot, tunables.lanes);
        this.arenas = new GpuArenas(opened.device, opened.arenaBytes, maxBytes);
        this.slotSets = new SlotSets(opened.device, nInFlight);
        this.lost = opened.lost;
        void opened.lost.then((reason) => this.#lose(reason));
    }

    /** Compile every program that a call may need. */
    async compile() {
        const types = /** @type {QuantType[]} */ (Object.keys(QUANT_TYPES));
        await Promise.all([this.programs.compileFrame(), this.programs.compile(types)]);
    }

    /**
     * @param {string} key
     * @param {ExpertWeights} weights
     */
    async load(key, weights) {
        this.#checkAlive();
        checkWeights(weights);
        const exponents = weightExponents(weights);
        if (this.#experts.has(key)) throw new KernelError(`expert ${key} is loaded already`);
        const { starts, bytes } = layOut(weights);
        const expert = new LoadedExpert(this.arenas, expertBytes(weights));
        this.#experts.set(key, expert);
        try {
            const place = await this.arenas.reserve(bytes);
            expert.place = place;
            await this.arenas.write(place, MATRICES.map((name) => ({ offset: starts[name], bytes: weights[name] })));
            this.#checkAlive();
            expert.ready = {
                place,
                dModel: weights.dModel,
                dFf: weights.dFf,
                types: { ...weights.types },
                offsets: mapMatrices((name) => place.start + starts[name]),
                exponents: mapMatrices((_, i) => exponents[i]),
            };
            this.loadedBytes += expert.bytes;
        } catch (error) {
            this.#experts.delete(key);
            expert.letGo();
            throw error;
        }
    }

    /** @param {string} key */
    unload(key) {
        const expert = this.#experts.get(key);
        if (!expert?.ready) return;
        this.#experts.delete(key);
        this.loadedBytes -= expert.bytes;
        expert.letGo();
    }

    /**
     * @param {ComputeCall} call
     * @returns {Promise<Float32Array>}
     */
    async compute(call) {
        this.#checkAlive();
        checkCall(call);
        const experts = this.#find(call);
        const distinct = [...new Set(experts)];
        for (const expert of distinct) expert.hold();
        try {
            const outputs = new Float32Array(call.pairKeys.length * call.dModel);
            const loaded = experts.map((expert) => /** @type {GpuExpert} */ (expert.ready));
            const chunks = planCall(call.pairRows, loaded, this.limits);
            const done = await Promise.allSettled(chunks.map((chunk) => this.#run(chunk, call.rows, outputs)));
            for (const each of done) if (each.status === "rejected") throw each.reason;
            return outputs;
        } finally {
            for (const expert of distinct) expert.letGo();
        }
    }

    close() {
        this.#lose("the kernel is closed");
        this.freeBuffers();
        this.device.destroy();
    }

    /** Free all memory on the device, which stays open. */
    freeBuffers() {
        this.#experts.clear();
        this.loadedBytes = 0;
        this.slotSets.close();
        this.arenas.close();
    }

    /**
     * @param {ComputeCall} call
     * @returns {LoadedExpert[]}
     */
    #find({ pairKeys, dModel }) {
        return pairKeys.map((key) => {
            const expert = this.#experts.get(key);
            if (!expert?.ready) throw new KernelError(`expert ${key} is not loaded`);
            if (expert.ready.dModel === dModel) return expert;
            throw new KernelError(`rows have ${dModel} values; expert ${key} takes ${expert.ready.dModel}`);
        });
    }

    /**
     * Compute a chunk and put its outputs where they belong.
     *
     * @param {Chunk} chunk
     * @param {Uint8Array} rows
     * @param {Float32Array} outputs of the call
     */
    async #run(chunk, rows, outputs) {
        const set = await this.slotSets.take();
        try {
            this.#checkAlive();
            this.device.pushErrorScope("validation");
            this.device.pushErrorScope("out-of-memory");
            const { readback, bytes } = submitChunk(this.programs, set, chunk, rows, this.limits.maxWork);
            const mapping = readback.mapAsync(READ, 0, bytes);
            await this.#settle(bytes, [mapping, this.device.popErrorScope(), this.device.popErrorScope()]);
            scatter(new Float32Array(readback.getMappedRange(0, bytes)), chunk, outputs);
            readback.unmap();
        } catch (error) {
            set.clear();
            throw error;
        } finally {
            this.slotSets.give(set);
        }
    }

    /**
     * Wait for the outputs and for what the device has to say of the commands; one error of theirs makes outputs void.
     *
     * @param {number} bytes
     * @param {[Promise<undefined>, Promise<GPUError | null>, Promise<GPUError | null>]} promises
     */
    async #settle(bytes, promises) {
        const [mapped, noMemory, invalid] = await Promise.allSettled(promises);
        if (noMemory.status === "fulfilled" && noMemory.value) throw new KernelMemoryError(bytes, 0);
        if (invalid.status === "fulfilled" && invalid.value) throw new KernelError(`WebGPU: ${invalid.value.message}`);
        const failed = [mapped, noMemory, invalid].find((each) => each.status === "rejected");
        if (failed) throw new KernelLostError(`the GPU gives no answer: ${String(failed.reason)}`);
        this.#checkAlive();
    }

    /** @param {string} reason */
    #lose(reason) {
        this.#lostReason ||= reason;
        this.slotSets.close();
    }

    #checkAlive() {
        if (this.#lostReason) throw new KernelLostError(this.#lostReason);
    }
}

/**
 * @param {Float32Array} computed [chunk pairs, dModel]
 * @param {Chunk} chunk
 * @param {Float32Array} outputs [call pairs, dModel]
 */
function scatter(computed, { pairs, dModel }, outputs) {
    if (computed.length === outputs.length) {
        outputs.set(computed);
        return;
    }
    pairs.forEach((pair, i) => outputs.set(computed.subarray(i * dModel, (i + 1) * dModel), pair * dModel));
}
