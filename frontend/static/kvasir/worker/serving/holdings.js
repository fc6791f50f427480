/**
 * A tab's holdings: the experts of its verified slices, in the kernel. `agent/fetch.js` loads a slice as soon as it is
 * verified; `agent.js` makes `Holdings` of those to serve. Connections check requests against them, the compute queue
 * computes with them.
 */

import { KernelError } from "../../errors.js";
import { mergeRanges, nExperts } from "../../slicing/expert_ranges.js";

/** @import { ExpertKernel, ExpertWeights } from "../../kernels/kernel_types.js" */
/** @import { ExpertRange } from "../agent/plan_state.js" */
/** @import { ExpertPlace } from "../../slicing/slice_file.js" */
/** @import { SliceFolder } from "../slices/paths.js" */
/** @import { HeldSlice } from "../slices/store.js" */

/**
 * @typedef {{layer: number, nExpert: number, dModel: number, keys: readonly string[]}} LoadedLayer  `keys`: the
 *   kernel's name of each local id
 */

/** Return the kernel's name of an expert. @param {{layer: number, expert: number}} place */
export function expertKey({ layer, expert }) {
    return `${layer}/${expert}`;
}

/**
 * Load every expert of a slice into a kernel. Throws KernelMemoryError or KernelError, and then loads none of them.
 * @param {ExpertKernel} kernel @param {SliceFolder} folder @param {HeldSlice} held
 */
export async function loadSlice(kernel, folder, held) {
    const file = await folder.openData(held.name);
    /** @type {string[]} */
    const loaded = [];
    try {
        for (const place of held.facts.experts) {
            if (place.hasBias) {
                throw new KernelError(`layer ${place.layer} has expert biases, which KX1 does not compute`);
            }
            const weights = readWeights(file, place);
            await kernel.load(expertKey(place), weights);
            loaded.push(expertKey(place));
        }
    } catch (error) {
        for (const key of loaded) kernel.unload(key);
        throw error;
    } finally {
        file.close();
    }
}

/** Unload every expert of a slice. @param {ExpertKernel} kernel @param {HeldSlice} held */
export function unloadSlice(kernel, held) {
    for (const place of held.facts.experts) kernel.unload(expertKey(place));
}

/** @param {import("../slices/paths.js").DataFile} file @param {ExpertPlace} place @returns {ExpertWeights} */
function readWeights(file, { dModel, dFf, types, gate, up, down }) {
    return { dModel, dFf, types, gate: file.read(gate), up: file.read(up), down: file.read(down) };
}

/** The experts that this worker can compute, by layer and local id. */
export class Holdings {
    /**
     * @param {ExpertKernel} kernel @param {readonly HeldSlice[]} slices of one model, loaded into it
     */
    constructor(kernel, slices) {
        const [first] = slices;
        this.kernel = kernel;
        this.modelFingerprint = first.fingerprint;
        this.modelName = first.facts.modelName;
        this.dModel = first.facts.dModel;
        /** @type {readonly ExpertRange[]} */
        this.ranges = mergeRanges(slices.flatMap((held) => held.facts.ranges));
        this.layers = loadedLayers(this.ranges, this.dModel);
    }

    /** The number of experts in all layers. */
    get nExperts() {
        return this.ranges.reduce((sum, range) => sum + nExperts(range), 0);
    }
}

/** @param {readonly ExpertRange[]} ranges merged @param {number} dModel @returns {Map<number, LoadedLayer>} */
function loadedLayers(ranges, dModel) {
    /** @type {Map<number, string[]>} */
    const keys = new Map();
    for (const { layer, start, stop } of ranges) {
        const held = keys.get(layer) ?? [];
        for (let expert = start; expert < stop; expert++) held.push(expertKey({ layer, expert }));
        keys.set(layer, held);
    }
    const layers = new Map();
    for (const [layer, held] of keys) layers.set(layer, { layer, nExpert: held.length, dModel, keys: held });
    return layers;
}
