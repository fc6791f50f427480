/**
 * One check of a kernel that is in use: the self-test, then an expert and rows that no kernel has seen before, which
 * WebAssembly computes too, in an instance of its own. `checked_kernel.js` calls it at random times.
 *
 * It goes through the kernel's own interface beside the calls under way, needs CHECK_BYTES there, and leaves nothing.
 */

import { KernelError, UnsupportedBrowserError } from "../errors.js";
import { BothKernel } from "./both_kernel.js";
import { packedRowBytes, weightExponents } from "./kx1_format.js";
import { adversarialRows, legalPackedRows, plainRows } from "./kx1_inputs.js";
import { packRows } from "./kx1_pack.js";
import { madeExpert, selfTest } from "./selftest.js";
import { SELF_TEST_CASES, SELF_TEST_SHAPE } from "./selftest_cases.js";
import { fetchModule } from "./wasm/builds.js";
import { Kx1Instance } from "./wasm/instance.js";

/** @import { ExpertKernel, ExpertWeights } from "./kernel_types.js" */
/** @import { BuildName } from "./wasm/builds.js" */
/** @typedef {(name: BuildName) => Promise<BufferSource>} ReadBuild */

/** What two experts of the self-test take at most, with room for how a device rounds. */
export const CHECK_BYTES = 1024 * 1024;
const WITNESS = "kx1_simd128"; // the build with the least that an engine could get wrong
const KINDS = /** @type {const} */ (["plain", "wild", "high", "low"]);

/**
 * @param {ExpertKernel} kernel
 * @param {number} seed of the fresh expert and rows, any whole number below 2^31
 * @param {ReadBuild} [readBuild] another source of the witness than `fetch`
 * @throws {KernelError} naming what differed; KernelLostError when the kernel was lost meanwhile; Error, of no kind of
 *   its own, when the witness cannot be had
 */
export async function checkKernel(kernel, seed, readBuild) {
    const halves = kernel instanceof BothKernel ? [kernel.gpu, kernel.wasm] : [kernel];
    for (const half of halves) {
        await selfTest(half);
        await compareFresh(half, seed, readBuild);
    }
}

/**
 * @param {ExpertKernel} kernel
 * @param {number} seed
 * @param {ReadBuild} [readBuild]
 */
async function compareFresh(kernel, seed, readBuild) {
    const [gate, up, down] = SELF_TEST_CASES[seed % SELF_TEST_CASES.length].types;
    const weights = madeExpert({ gate, up, down }, SELF_TEST_SHAPE, seed, KINDS[(seed >> 2) % KINDS.length]);
    const rows = freshRows(seed);
    const wanted = await witnessed(weights, rows, readBuild);
    if (wanted === null) return;
    const found = new Uint32Array((await computeAll(kernel, `fresh check ${seed}`, weights, rows)).buffer);
    const place = wanted.findIndex((bits, i) => bits !== found[i]);
    if (place >= 0) {
        throw new KernelError(
            `the kernel gives other bits than WebAssembly for fresh numbers (seed ${seed}, ${gate} ${up} ${down}, value ${place})`,
        );
    }
}

/**
 * Packed rows: usual ones, extreme ones, and such as no quantiser makes.
 *
 * @param {number} seed
 */
function freshRows(seed) {
    const { dModel } = SELF_TEST_SHAPE;
    const parts = [
        packRows(plainRows(8, dModel, seed), dModel),
        packRows(adversarialRows(dModel, seed), dModel),
        legalPackedRows(dModel, seed),
    ];
    const rows = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let end = 0;
    for (const part of parts) {
        rows.set(part, end);
        end += part.length;
    }
    return rows;
}

/**
 * Bits of the outputs by WebAssembly, compiled anew; null where the browser has none.
 *
 * @param {ExpertWeights} weights
 * @param {Uint8Array} rows
 * @param {ReadBuild} [readBuild]
 */
async function witnessed(weights, rows, readBuild) {
    let module;
    try {
        module = await fetchModule(WITNESS, readBuild);
    } catch (error) {
        if (error instanceof UnsupportedBrowserError) return null;
        throw new Error(`${WITNESS} did not come: ${error}`); // not the kernel's fault
    }
    const instance = await Kx1Instance.of(module);
    const outputs = new Float32Array((rows.length / packedRowBytes(weights.dModel)) * weights.dModel);
    instance.compute(instance.load(weights, weightExponents(weights)), rows, outputs);
    return new Uint32Array(outputs.buffer);
}

/**
 * @param {ExpertKernel} kernel
 * @param {string} key
 * @param {ExpertWeights} weights
 * @param {Uint8Array} rows
 */
async function computeAll(kernel, key, weights, rows) {
    const { dModel } = weights;
    const nRows = rows.length / packedRowBytes(dModel);
    const pairRows = Uint32Array.from({ length: nRows }, (_, row) => row);
    try {
        await kernel.load(key, weights);
        return await kernel.compute({ rows, nRows, dModel, pairRows, pairKeys: Array.from(pairRows, () => key) });
    } finally {
        kernel.unload(key);
    }
}
