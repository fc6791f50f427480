/**
 * KX1 on a GPU by WebGPU: implements ExpertKernel of `kernel_types.js`.
 *
 * Made by `gpu/kernel.js` alone, which proves it before anybody has it. Weights lie in arenas on the device; several
 * calls are under way at once, each in parts. A call never compiles and never gives outputs of commands that failed.
 */

import { KernelError, KernelLostError, KernelMemoryError } from "../../errors.js";
import {
    checkCall,
    checkWeights,
    expertBytes,
    KX1_FINGERPRINT,
    MATRICES,
    QUANT_TYPES,
    weightExponents,
} from "../kx1_format.js";
import { GpuArenas, LoadedExpert, layOut, mapMatrices } from "./arenas.js";
import { submitChunk } from "./encoder.js";
import { planCall } from "./plan.js";
import { GpuPrograms, NEVER } from "./programs.js";
import { SlotSets } from "./slot_sets.js";

/** @import { ComputeCall, ExpertWeights, QuantType } from "../kernel_types.js" */
/** @import { GpuDevice } from "./device.js" */
/** @import { Chunk, GpuExpert } from "./plan.js" */
/** @import { DotVariant, GpuSources, GpuTunables } from "./programs.js" */
/** @import { SlotSet } from "./slot_sets.js" */

const BUFFER_BYTES = 32 * 1024 * 1024; // of a chunk's widest buffer
const MAX_WORK = 2 ** 31; // weights times pairs of a submission: well below a second on the slowest real GPU
const MAX_SOFTWARE_WORK = 2 ** 26;
const READ = 1; // GPUMapMode.READ

/** @typedef {{readback: GPUBuffer, bytes: number, mapped: Promise<undefined>, errors: Promise<GPUError | null>[]}} Submitted */

/**
 * One device with one build of the shaders. Made by `createGpuKernel`, which proves it before anybody has it.
 */
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
     * @param {{dot: DotVariant, tunables: GpuTunables, maxBytes: number, nInFlight: number}} options
     */
    constructor(opened, sources, { dot, tunables, maxBytes, nInFlight }) {
        this.device = opened.device;
        this.description = describe(opened.description, dot, tunables);
        this.isSoftware = opened.isSoftware;
        this.tunables = tunables;
        this.capacityBytes = maxBytes;
        this.limits = {
            ...tunables,
            maxWork: opened.isSoftware ? MAX_SOFTWARE_WORK : MAX_WORK,
            bufferBytes: Math.min(BUFFER_BYTES, opened.arenaBytes),
        };
        this.programs = new GpuPrograms(opened.device, sources, dot, tunables);
        this.arenas = new GpuArenas(opened.device, opened.arenaBytes, maxBytes);
        this.slotSets = new SlotSets(opened.device, nInFlight);
        this.lost = opened.lost;
        void opened.lost.then((reason) => this.#lose(reason));
    }

    /**
     * Compile every program that a call may need: no call waits for a compiler.
     *
     * @param {QuantType[]} [types] of weights that will come
     */
    async compile(types = /** @type {QuantType[]} */ (Object.keys(QUANT_TYPES))) {
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
            const pieces = MATRICES.map((name) => ({ offset: starts[name], bytes: weights[name] }));
            await this.arenas.write(place, pieces);
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
            const submitted = this.#submit(set, chunk, rows);
            await this.#settle(submitted);
            const { readback, bytes } = submitted;
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
     * Queue a chunk. What the device has to say of its commands comes in `errors`.
     *
     * @param {SlotSet} set
     * @param {Chunk} chunk
     * @param {Uint8Array} rows
     * @returns {Submitted}
     */
    #submit(set, chunk, rows) {
        this.device.pushErrorScope("validation");
        this.device.pushErrorScope("out-of-memory");
        const { readback, bytes } = submitChunk(this.programs, set, chunk, rows, this.limits.maxWork);
        const mapped = readback.mapAsync(READ, 0, bytes);
        return { readback, bytes, mapped, errors: [this.device.popErrorScope(), this.device.popErrorScope()] };
    }

    /**
     * Wait for the outputs and for the errors; one of them makes the outputs void.
     *
     * @param {Submitted} submitted
     */
    async #settle({ bytes, mapped, errors }) {
        const [noMemory, invalid] = await Promise.allSettled(errors);
        const [answer] = await Promise.allSettled([mapped]);
        if (noMemory.status === "fulfilled" && noMemory.value) throw new KernelMemoryError(bytes, 0);
        if (invalid.status === "fulfilled" && invalid.value) throw new KernelError(`WebGPU: ${invalid.value.message}`);
        for (const each of [answer, noMemory, invalid]) {
            if (each.status === "rejected")
                throw new KernelLostError(`the GPU gives no answer: ${String(each.reason)}`);
        }
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
    for (const [i, pair] of pairs.entries()) {
        outputs.set(computed.subarray(i * dModel, (i + 1) * dModel), pair * dModel);
    }
}

/**
 * @param {string} device
 * @param {DotVariant} dot
 * @param {GpuTunables} tunables
 */
function describe(device, dot, { lanes, tiledFrom }) {
    return `${device}, ${dot}, ${lanes} lanes${tiledFrom < NEVER ? `, tiled from ${tiledFrom}` : ""}`;
}
