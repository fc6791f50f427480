/**
 * The buffers of chunks in flight: a set for each, so that one is filled and read while the GPU computes another.
 * `gpu/backend.js` and `gpu/encoder.js` use them. Buffers grow as needed and are kept.
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

/** One set, used by one chunk at a time. */
export class SlotSet {
    /** @param {GPUDevice} device */
    constructor(device) {
        this.device = device;
        /** @type {Map<BufferName, GPUBuffer>} */
        this.buffers = new Map();
    }

    /**
     * Return the buffer of this name with at least this many bytes; its contents may be lost.
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

    /** Free the buffers; the set may be used again. */
    clear() {
        for (const buffer of this.buffers.values()) buffer.destroy();
        this.buffers.clear();
    }
}

/** A fixed number of sets. Callers wait in turn for a free one. */
export class SlotSets {
    /**
     * @param {GPUDevice} device
     * @param {number} n chunks in flight at once
     */
    constructor(device, n) {
        this.all = Array.from({ length: n }, () => new SlotSet(device));
        this.free = [...this.all];
        /** @type {{resolve: (set: SlotSet) => void, reject: (error: Error) => void}[]} */
        this.waiting = [];
        this.isClosed = false;
    }

    /** Take a set until `give`. Throws KernelLostError once closed. @returns {Promise<SlotSet>} */
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

    /** Free all buffers; waiting callers fail. */
    close() {
        this.isClosed = true;
        for (const { reject } of this.waiting.splice(0)) reject(new KernelLostError("the GPU kernel is closed"));
        for (const set of this.all) set.clear();
    }
}
