/**
 * One instance of KX1's WebAssembly build: its memory, the experts in it, and one call at a time.
 *
 * Called by `wasm/thread.js`, on the thread that owns it, and by the tests. It never checks what came from elsewhere:
 * weights and rows were checked before (`kx1_format.js`), codes and multipliers once more in C.
 */

import { KernelError, KernelMemoryError } from "../../errors.js";
import { expertBytes, MATRICES, packedRowBytes, QUANT_TYPES } from "../kx1_format.js";

/** @import { ExpertWeights, QuantType } from "../kernel_types.js" */

/**
 * What kx1_wasm.c exports. Addresses and sizes are numbers of bytes.
 *
 * @typedef {object} Exports
 * @property {WebAssembly.Memory} memory
 * @property {() => void} [_initialize]
 * @property {(nBytes: number) => number} allocate 0 when memory is out
 * @property {(address: number) => void} release
 * @property {(type: number, weights: number, rows: number, cols: number) => number} weight_exponent
 * @property {(dModel: number, dFf: number, n: number) => number} work_bytes
 * @property {(rows: number, n: number, cols: number, packed: number) => number} pack_rows
 * @property {(expert: number, rows: number, n: number, work: number, out: number) => number} compute_expert
 * @property {(matrix: number, nOut: number, cols: number, rows: number, n: number, work: number, out: number) =>
 *   number} compute_matrix
 * @property {(gate: number, up: number, h: number, n: number) => void} silu_mul
 */

/** Rows computed together: more would leave the processor's cache. */
export const MOST_ROWS = 128;

const MATRIX_WORDS = 3; // type, exponent, address
const EXPERT_WORDS = 2 + 3 * MATRIX_WORDS;

/** @typedef {{address: number, nBytes: number, dModel: number, dFf: number}} LoadedExpert */

export class Kx1Instance {
    /** @param {WebAssembly.Instance} instance */
    constructor(instance) {
        this.exports = /** @type {Exports} */ (/** @type {unknown} */ (instance.exports));
        this.exports._initialize?.();
        /** Kept between calls, and grown. */
        this.scratch = { address: 0, nBytes: 0 };
    }

    /**
     * @param {WebAssembly.Module} module
     * @returns {Promise<Kx1Instance>}
     */
    static async of(module) {
        return new Kx1Instance(await WebAssembly.instantiate(module, {}));
    }

    /**
     * Copy an expert into memory.
     *
     * @param {ExpertWeights} weights
     * @param {number[]} exponents of gate, up and down
     * @returns {LoadedExpert}
     * @throws {KernelMemoryError} and nothing has changed
     */
    load(weights, exponents) {
        const nBytes = expertBytes(weights);
        const header = EXPERT_WORDS * 4;
        const address = this.allocate(header + nBytes);
        const words = [weights.dModel, weights.dFf];
        let end = address + header;
        MATRICES.forEach((matrix, i) => {
            words.push(QUANT_TYPES[weights.types[matrix]].code, exponents[i], end);
            this.bytes(end, weights[matrix].length).set(weights[matrix]);
            end += weights[matrix].length;
        });
        new Int32Array(this.exports.memory.buffer, address, EXPERT_WORDS).set(words);
        return { address, nBytes, dModel: weights.dModel, dFf: weights.dFf };
    }

    /** @param {LoadedExpert} expert */
    unload(expert) {
        this.exports.release(expert.address);
    }

    /**
     * The outputs of one expert for `n` packed rows: f32 [n, dModel] into `out`.
     *
     * @param {LoadedExpert} expert
     * @param {Uint8Array} rows [n, packedRowBytes(dModel)]
     * @param {Float32Array} out
     */
    compute(expert, rows, out) {
        const rowBytes = packedRowBytes(expert.dModel);
        const n = rows.length / rowBytes;
        for (let start = 0; start < n; start += MOST_ROWS) {
            const stop = Math.min(start + MOST_ROWS, n);
            const part = rows.subarray(start * rowBytes, stop * rowBytes);
            this.computePart(expert, part, stop - start, out.subarray(start * expert.dModel, stop * expert.dModel));
        }
    }

    /**
     * @param {LoadedExpert} expert
     * @param {Uint8Array} rows
     * @param {number} n at most MOST_ROWS
     * @param {Float32Array} out
     */
    computePart(expert, rows, n, out) {
        const [input, output, work] = this.scratchParts([
            rows.length,
            out.byteLength,
            this.exports.work_bytes(expert.dModel, expert.dFf, n),
        ]);
        this.bytes(input, rows.length).set(rows);
        raise(this.exports.compute_expert(expert.address, input, n, work, output));
        out.set(new Float32Array(this.exports.memory.buffer, output, out.length));
    }

    /**
     * Steps 2 to 4 alone, for the tests: bits of `n` packed rows times one matrix, [n, nOut].
     *
     * @param {{type: QuantType, nOut: number, nIn: number, bytes: Uint8Array}} matrix
     * @param {Uint8Array} rows
     * @returns {Uint32Array}
     */
    multiply({ type, nOut, nIn, bytes }, rows) {
        const n = rows.length / packedRowBytes(nIn);
        const code = QUANT_TYPES[type].code;
        const [header, weights, input, output, work] = this.scratchParts([
            MATRIX_WORDS * 4,
            bytes.length,
            rows.length,
            n * nOut * 4,
            this.exports.work_bytes(nIn, 0, n),
        ]);
        this.bytes(weights, bytes.length).set(bytes);
        this.bytes(input, rows.length).set(rows);
        const exponent = this.exports.weight_exponent(code, weights, nOut, nIn);
        new Int32Array(this.exports.memory.buffer, header, MATRIX_WORDS).set([code, exponent, weights]);
        raise(this.exports.compute_matrix(header, nOut, nIn, input, n, work, output));
        return new Uint32Array(this.exports.memory.buffer, output, n * nOut).slice();
    }

    /**
     * Step 1: bits of f32 rows [n, cols] to packed rows.
     *
     * @param {Uint32Array} rows
     * @param {number} cols
     * @returns {Uint8Array}
     */
    packRows(rows, cols) {
        const n = rows.length / cols;
        const packedBytes = n * packedRowBytes(cols);
        const [input, packed] = this.scratchParts([rows.byteLength, packedBytes]);
        new Uint32Array(this.exports.memory.buffer, input, rows.length).set(rows);
        if (this.exports.pack_rows(input, n, cols, packed)) {
            throw new KernelError("a row holds infinity or NaN; rows must be finite");
        }
        return this.bytes(packed, packedBytes).slice();
    }

    /**
     * Step 5 of bits.
     *
     * @param {Uint32Array} gate
     * @param {Uint32Array} up
     * @returns {Uint32Array}
     */
    siluMul(gate, up) {
        const [g, u] = this.scratchParts([gate.byteLength, up.byteLength]);
        new Uint32Array(this.exports.memory.buffer, g, gate.length).set(gate);
        new Uint32Array(this.exports.memory.buffer, u, up.length).set(up);
        this.exports.silu_mul(g, u, g, gate.length);
        return new Uint32Array(this.exports.memory.buffer, g, gate.length).slice();
    }

    /**
     * Addresses of pieces of the scratch memory, until the next call.
     *
     * @param {number[]} sizes
     * @returns {number[]}
     */
    scratchParts(sizes) {
        const rounded = sizes.map((size) => Math.ceil(size / 64) * 64);
        const wanted = rounded.reduce((sum, size) => sum + size, 0);
        if (wanted > this.scratch.nBytes) {
            if (this.scratch.address) this.exports.release(this.scratch.address);
            this.scratch = { address: 0, nBytes: 0 };
            this.scratch = { address: this.allocate(wanted), nBytes: wanted };
        }
        let end = this.scratch.address;
        return rounded.map((size) => {
            end += size;
            return end - size;
        });
    }

    /**
     * @param {number} nBytes
     * @returns {number}
     */
    allocate(nBytes) {
        const address = this.exports.allocate(nBytes) >>> 0;
        if (!address) throw new KernelMemoryError(nBytes, 0);
        return address;
    }

    /**
     * A view of memory, good until the next allocation.
     *
     * @param {number} address
     * @param {number} nBytes
     */
    bytes(address, nBytes) {
        return new Uint8Array(this.exports.memory.buffer, address, nBytes);
    }
}

/** @param {number} error as compute_expert returns it */
function raise(error) {
    if (error) throw new KernelError(`a packed row holds ${error === -1 ? "code -128" : "multiplier 0"}`);
}
