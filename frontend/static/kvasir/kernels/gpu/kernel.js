/**
 * Makes the GPU kernel: finds a device, chooses how to compute on it, and proves that it gives KX1's bits.
 *
 * Called by `kernel_choice.js`. A device that computes anything else is never handed out.
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
 * @property {GPUAdapter | null} [adapter] take this one; it serves once
 * @property {boolean} software take a software adapter too: for tests, since WebAssembly is faster
 * @property {number} maxBytes of weights, at most
 * @property {number} [nInFlight] parts of calls under way at once
 * @property {GpuTunables | null} [tunables] measured before on this device (`kernel.tunables`); else measured now
 */

/** The self-test has calls of 20 rows and of 1 to 3: with this it meets `tiled` as well as `matvec`. */
const SELF_TEST_TILED_FROM = 16;
/** A software adapter compiles `tiled` for many seconds and gains nothing by it. */
const SOFTWARE_TUNABLES = { lanes: 4, tiledFrom: NEVER };

/**
 * A kernel that met the self-test. Throws GpuUnavailableError where there is no GPU, KernelError where it miscomputes.
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
 * Whether these are tunables that the shaders have: what a browser remembered may be anything.
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
 * The kernel with the first way to multiply bytes that gives the right bits. Throws what the first one said.
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

/** The self-test with every program that is compiled. @param {GpuKernel} kernel */
async function prove(kernel) {
    const { tiledFrom } = kernel.limits;
    if (tiledFrom < NEVER) kernel.limits.tiledFrom = Math.min(tiledFrom, SELF_TEST_TILED_FROM);
    await selfTest(kernel);
    kernel.limits.tiledFrom = tiledFrom;
}
