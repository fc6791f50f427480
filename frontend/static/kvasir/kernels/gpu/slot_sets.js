/**
 * The buffers of chunks that are under way: a set each, so that one is filled and read while the GPU computes another.
 *
 * Called by `gpu/backend.js` and `gpu/encoder.js`. Buffers grow as chunks need it and are kept; weights are not here.
 */

import { KernelLostError } from "../../errors.js";

// Numbers of GPUBufferUsage, which the standard fixes.
const [MAP_READ, COPY_SRC, COPY_DST, UNIFORM, STORAGE] = [0x01, 0x04, 0x08, 0x40, 0x80];
const SMALLEST = 4096;

const USAGES = {
    packed: STORAGE | COPY_DST,
    rowActivations: STORAGE,
    gateUp: STORAGE,
    slotActivations: STORAGE,
    outputs: STORAGE | COPY_SRC,
    tasks: STORAGE | COPY_DST,
    pairs: STORAGE | COPY_DST,
    shapes: UNIFORM | COPY_DST,
    readback: MAP_READ | COPY_DST,
};

/** @typedef {keyof typeof USAGES} BufferName */

/** One set: in use by one chunk at a time. */
export class SlotSet {
    /** @param {GPUDevice} device */
    constructor(device) {
        this.device = device;
        /** @type {Map<BufferName, GPUBuffer>} */
        this.buffers = new Map();
    }

    /**
     * The buffer of this name, of this many bytes or more; what was in it may be lost.
     *
     * @param {BufferName} name
     * @param {number} bytes
     */
    fit(name, bytes) {
        const old = this.buffers.get(name);
        if (old && old.size >= bytes) return old;
        old?.destroy();
        const size = Math.max(SMALLEST, 2 ** Math.ceil(Math.log2(bytes)));
        const made = this.device.createBuffer({ label: name, size, usage: USAGES[name] });
        this.buffers.set(name, made);
        return made;
    }

    /** Free its buffers; it may be used again. */
    clear() {
        for (const buffer of this.buffers.values()) buffer.destroy();
        this.buffers.clear();
    }
}

/** A fixed number of sets; who finds none free waits in turn. */
export class SlotSets {
    /**
     * @param {GPUDevice} device
     * @param {number} n chunks under way at once
     */
    constructor(device, n) {
        this.all = Array.from({ length: n }, () => new SlotSet(device));
        this.free = [...this.all];
        /** @type {{resolve: (set: SlotSet) => void, reject: (error: Error) => void}[]} */
        this.waiting = [];
        this.isClosed = false;
    }

    /** A set of one's own until `give`. Throws KernelLostError once closed. @returns {Promise<SlotSet>} */
    take() {
        if (this.isClosed) return Promise.reject(new KernelLostError("the GPU kernel is closed"));
        const set = this.free.pop();
        if (set) return Promise.resolve(set);
        return new Promise((resolve, reject) => this.waiting.push({ resolve, reject }));
    }

    /** @param {SlotSet} set */
    give(set) {
        const next = this.waiting.shift();
        if (next) next.resolve(set);
        else this.free.push(set);
    }

    /** Free all buffers; who waits is told so. */
    close() {
        this.isClosed = true;
        for (const { reject } of this.waiting.splice(0)) reject(new KernelLostError("the GPU kernel is closed"));
        for (const set of this.all) set.clear();
    }
}
