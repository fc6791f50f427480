/**
 * Experts that lie on the GPU: where, and for how long.
 *
 * Called by `gpu/backend.js`. A place is given back when the kernel forgot the expert and no call computes with it.
 */

import { MATRICES } from "../kx1_format.js";

/** @import { ExpertWeights } from "../kernel_types.js" */
/** @import { GpuArenas } from "./arenas.js" */
/** @import { GpuExpert } from "./plan.js" */

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
