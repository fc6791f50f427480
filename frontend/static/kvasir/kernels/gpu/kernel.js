/**
 * Makes the GPU kernel: finds a device, tunes the kernel for it, and tests that it gives KX1's bits. `kernel_choice.js`
 * calls it.
 */

import { GpuUnavailableError, KernelLostError } from "../../errors.js";
import { selfTest } from "../selftest.js";
import { GpuKernel } from "./backend.js";
import { openGpuDevice } from "./device.js";
import { dotVariants, LANES, NEVER, readSources } from "./programs.js";
import { measureTunables } from "./tunables.js";

/** @import { GpuDevice } from "./device.js" */
/** @import { GpuSources, GpuTunables } from "./programs.js" */

/**
 * @typedef {object} GpuKernelOptions
 * @property {GPUAdapter | null} [adapter] use this one; it works once
 * @property {boolean} software accept a software adapter too: for tests, since WebAssembly is faster
 * @property {number} maxBytes of weights, at most
 * @property {number} [nInFlight] parts of calls in flight at once
 * @property {GpuTunables | null} [tunables] measured before on this device (`kernel.tunables`); null: measure now
 */

/** The self-test has calls of 20 rows and of 1 to 3: with this it covers `tiled` as well as `matvec`. */
const SELF_TEST_TILED_FROM = 16;
/** A software adapter compiles `tiled` for many seconds and is not faster with it. */
const SOFTWARE_TUNABLES = { lanes: 4, tiledFrom: NEVER };

/**
 * Return a kernel that passed the self-test. Throws GpuUnavailableError if there is no GPU, KernelError if it computes
 * wrongly.
 *
 * @param {GpuKernelOptions} options
 * @returns {Promise<GpuKernel>}
 */
export async function createGpuKernel({ adapter, software, maxBytes, nInFlight = 2, tunables }) {
    const sources = await readSources();
    const opened = await openGpuDevice({ adapter, software });
    try {
        const [dot] = dotVariants();
        const known = isUsable(tunables) ? tunables : opened.isSoftware ? SOFTWARE_TUNABLES : null;
        const chosen = known ?? (await measureTunables(opened, sources, dot));
        return await firstProven(opened, sources, { tunables: chosen, maxBytes, nInFlight });
    } catch (error) {
        opened.device.destroy();
        if (error instanceof KernelLostError) throw new GpuUnavailableError(`${opened.description}: ${error.message}`);
        throw error;
    }
}

/**
 * Return whether remembered tunables are valid for the shaders.
 *
 * @param {GpuTunables | null | undefined} tunables
 * @returns {tunables is GpuTunables}
 */
function isUsable(tunables) {
    return (
        !!tunables && LANES.includes(tunables.lanes) && Number.isInteger(tunables.tiledFrom) && tunables.tiledFrom > 0
    );
}

/**
 * Return the kernel with the first way to multiply bytes that gives the right bits. Throws the error of the first one
 * if none does.
 *
 * @param {GpuDevice} opened
 * @param {GpuSources} sources
 * @param {{tunables: GpuTunables, maxBytes: number, nInFlight: number}} options
 */
async function firstProven(opened, sources, options) {
    /** @type {unknown} */
    let problem = null;
    for (const dot of dotVariants()) {
        const kernel = new GpuKernel(opened, sources, { dot, ...options });
        try {
            await kernel.compile();
            await prove(kernel);
            return kernel;
        } catch (error) {
            if (error instanceof KernelLostError) throw error;
            problem ??= error;
            kernel.freeBuffers();
        }
    }
    throw problem;
}

/** Run the self-test with every compiled program. @param {GpuKernel} kernel */
async function prove(kernel) {
    const { tiledFrom } = kernel.limits;
    if (tiledFrom < NEVER) kernel.limits.tiledFrom = Math.min(tiledFrom, SELF_TEST_TILED_FROM);
    await selfTest(kernel);
    kernel.limits.tiledFrom = tiledFrom;
}
