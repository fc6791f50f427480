/**
 * Memory for weights on the GPU: arenas, buffers that a weak device can still bind whole, cut into experts' places.
 *
 * Called by `gpu/backend.js`. An expert never crosses arenas. When the device has no memory left it says so with
 * KernelMemoryError, before anything that is loaded is touched.
 */

import { KernelError, KernelMemoryError } from "../../errors.js";
import { MATRICES } from "../kx1_format.js";

/** @import { ExpertWeights } from "../kernel_types.js" */
/** @import { GpuExpert } from "./plan.js" */

const ALIGNMENT = 256;
// Numbers of GPUBufferUsage, which the standard fixes; the global is missing outside of browsers.
const STORAGE_COPY_DST = 0x80 | 0x08;

/**
 * @typedef {{buffer: GPUBuffer, size: number, gaps: {start: number, size: number}[]}} Arena `gaps` in order of start
 * @typedef {{arena: Arena, start: number, size: number}} Place bytes in an arena; start and size are multiples of 256
 */

/** All arenas of one device. */
export class GpuArenas {
    /**
     * @param {GPUDevice} device
     * @param {number} arenaBytes the most that one buffer may have
     * @param {number} capacityBytes of all arenas together
     */
    constructor(device, arenaBytes, capacityBytes) {
        this.device = device;
        this.arenaBytes = floorTo(arenaBytes, ALIGNMENT);
        this.capacityBytes = capacityBytes;
        /** @type {Arena[]} */
        this.arenas = [];
        /** @type {Promise<unknown>} */
        this.last = Promise.resolve();
    }

    /** Bytes of the buffers that exist. */
    get reservedBytes() {
        return this.arenas.reduce((sum, arena) => sum + arena.size, 0);
    }

    /**
     * A place of this many bytes. Throws KernelMemoryError where there is none, KernelError for more than an arena.
     *
     * @param {number} bytes
     * @returns {Promise<Place>}
     */
    reserve(bytes) {
        const turn = this.last.then(() => this.#reserve(roundUpTo(bytes, ALIGNMENT)));
        this.last = turn.catch(() => undefined);
        return turn;
    }

    /** Give a place back; an arena without any is freed. @param {Place} place */
    release({ arena, start, size }) {
        const after = arena.gaps.findIndex((gap) => gap.start > start);
        arena.gaps.splice(after < 0 ? arena.gaps.length : after, 0, { start, size });
        arena.gaps = merged(arena.gaps);
        if (arena.gaps[0].size === arena.size) {
            arena.buffer.destroy();
            this.arenas.splice(this.arenas.indexOf(arena), 1);
        }
    }

    /**
     * Put bytes into a place. Throws KernelMemoryError when the device has no memory for the copy.
     *
     * @param {Place} place
     * @param {{offset: number, bytes: Uint8Array}[]} pieces offsets are multiples of 4
     */
    async write(place, pieces) {
        this.device.pushErrorScope("out-of-memory");
        for (const { offset, bytes } of pieces) {
            writePadded(this.device.queue, place.arena.buffer, place.start + offset, bytes);
        }
        // The answer to this comes after the copies were taken: it also keeps a fast reader from running ahead.
        const error = await this.device.popErrorScope();
        if (error) throw new KernelMemoryError(place.size, 0);
    }

    /** Free all of it. */
    close() {
        for (const arena of this.arenas) arena.buffer.destroy();
        this.arenas = [];
    }

    /**
     * @param {number} size
     * @returns {Promise<Place>}
     */
    async #reserve(size) {
        if (size > this.arenaBytes) {
            throw new KernelError(`an expert has ${size} bytes; this GPU binds ${this.arenaBytes} at most`);
        }
        for (const arena of this.arenas) {
            const gap = arena.gaps.find((each) => each.size >= size);
            if (gap) return take(arena, gap, size);
        }
        const arena = await this.#grow(size);
        return take(arena, arena.gaps[0], size);
    }

    /**
     * A new arena for as many experts of this size as are allowed, or as many of them as the device has memory for.
     *
     * @param {number} size
     */
    async #grow(size) {
        const left = this.capacityBytes - this.reservedBytes;
        if (left < size) throw new KernelMemoryError(size, Math.max(left, 0));
        for (let n = Math.floor(Math.min(this.arenaBytes, left) / size); n >= 1; n = Math.floor(n / 2)) {
            const buffer = await createBuffer(this.device, n * size);
            if (!buffer) continue;
            const arena = { buffer, size: n * size, gaps: [{ start: 0, size: n * size }] };
            this.arenas.push(arena);
            return arena;
        }
        throw new KernelMemoryError(size, 0);
    }
}

/**
 * Copy bytes of any number; the last word is filled up with zeros. The buffer has room for the whole word.
 *
 * @param {GPUQueue} queue
 * @param {GPUBuffer} buffer
 * @param {number} offset a multiple of 4
 * @param {Uint8Array} bytes of memory that is not shared
 */
export function writePadded(queue, buffer, offset, bytes) {
    const whole = floorTo(bytes.length, 4);
    const own = /** @type {Uint8Array<ArrayBuffer>} */ (bytes);
    if (whole > 0) queue.writeBuffer(buffer, offset, own, 0, whole);
    if (whole === bytes.length) return;
    const rest = new Uint8Array(4);
    rest.set(bytes.subarray(whole));
    queue.writeBuffer(buffer, offset + whole, rest);
}

/**
 * A buffer, or null when the device has no memory for it.
 *
 * @param {GPUDevice} device
 * @param {number} size
 */
async function createBuffer(device, size) {
    device.pushErrorScope("out-of-memory");
    const buffer = device.createBuffer({ label: "weights", size, usage: STORAGE_COPY_DST });
    const error = await device.popErrorScope();
    if (!error) return buffer;
    buffer.destroy();
    return null;
}

/**
 * @param {Arena} arena
 * @param {{start: number, size: number}} gap
 * @param {number} size
 * @returns {Place}
 */
function take(arena, gap, size) {
    const place = { arena, start: gap.start, size };
    gap.start += size;
    gap.size -= size;
    if (gap.size === 0) arena.gaps.splice(arena.gaps.indexOf(gap), 1);
    return place;
}

/** Neighbouring gaps become one. @param {{start: number, size: number}[]} gaps in order */
function merged(gaps) {
    /** @type {{start: number, size: number}[]} */
    const joined = [];
    for (const gap of gaps) {
        const last = joined.at(-1);
        if (last && last.start + last.size === gap.start) last.size += gap.size;
        else joined.push({ ...gap });
    }
    return joined;
}

/**
 * @param {number} value
 * @param {number} step
 */
function floorTo(value, step) {
    return Math.floor(value / step) * step;
}

/**
 * @param {number} value
 * @param {number} step
 */
function roundUpTo(value, step) {
    return Math.ceil(value / step) * step;
}

const MATRIX_ALIGNMENT = 16;

/** An expert's place, kept until nobody computes with it any more. */
export class LoadedExpert {
    /** @type {GpuExpert | null} */
    ready = null;
    /** @type {GpuExpert["place"] | null} */
    place = null;
    #nUsers = 1; // the kernel itself

    /**
     * @param {GpuArenas} arenas
     * @param {number} bytes of its matrices
     */
    constructor(arenas, bytes) {
        this.arenas = arenas;
        this.bytes = bytes;
    }

    /** One user more: a call. */
    hold() {
        this.#nUsers += 1;
    }

    /** One user less; after the last its place is given back. */
    letGo() {
        this.#nUsers -= 1;
        if (this.#nUsers === 0 && this.place) this.arenas.release(this.place);
    }
}

/**
 * Where each matrix begins in an expert's place, and the bytes of all.
 *
 * @param {ExpertWeights} weights
 */
export function layOut(weights) {
    let bytes = 0;
    const starts = mapMatrices((name) => {
        const start = bytes;
        bytes += Math.ceil(weights[name].length / MATRIX_ALIGNMENT) * MATRIX_ALIGNMENT;
        return start;
    });
    return { starts, bytes };
}

/**
 * @param {(name: typeof MATRICES[number], index: number) => number} find
 * @returns {{gate: number, up: number, down: number}}
 */
export function mapMatrices(find) {
    const [gate, up, down] = MATRICES.map(find);
    return { gate, up, down };
}
