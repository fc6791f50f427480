/**
 * What a slice holds and where: each expert's matrices as places in the file, in the order of the expert's digest.
 * `slices/repair.js` hashes these places, `holdings.js` loads them into a kernel. The metadata is checked against the
 * tensors first.
 */

import { BrokenSliceError } from "../errors.js";
import { readGgufHeader } from "../gguf/header.js";

/** @import { ExpertRange } from "../worker/agent/plan_state.js" */
/** @import { GgufHeader, TensorInfo } from "../gguf/header.js" */
/** @import { QuantType } from "../kernels/kernel_types.js" */

/** @typedef {{offset: number, nBytes: number}} BytePlace */

/**
 * @typedef {object} ExpertPlace  One expert in a slice.
 * @property {number} layer
 * @property {number} expert  its id in the model
 * @property {number} dModel
 * @property {number} dFf
 * @property {{gate: QuantType, up: QuantType, down: QuantType}} types  as the file names them
 * @property {BytePlace} gate
 * @property {BytePlace} up
 * @property {BytePlace} down
 * @property {BytePlace[]} digested  all its bytes, in the order of the manifest's digest
 * @property {boolean} hasBias
 */

/**
 * @typedef {object} SliceFacts
 * @property {string} modelName
 * @property {string} modelFingerprint
 * @property {number} dModel
 * @property {ExpertRange[]} ranges
 * @property {ExpertPlace[]} experts  by layer, then by id
 */

const EXPERT_TENSOR = /^blk\.(0|[1-9]\d{0,5})\.ffn_(gate|up|down|gate_up)_exps\.(weight|bias)$/;
const SLICE_VERSION = 1;

/**
 * Read the slice whose header is `header`. Throws BrokenSliceError if it is not a slice, or does not hold what its
 * metadata states.
 * @param {Uint8Array} header @param {number} nBytes of the whole file @returns {SliceFacts}
 */
export function readSlice(header, nBytes) {
    const { metadata, tensors } = readGgufHeader(header, nBytes);
    const version = metadata.get("kvasir.slice.version");
    if (version !== SLICE_VERSION) {
        throw new BrokenSliceError(`slice version ${version} is not supported; ${SLICE_VERSION} is`);
    }
    const ranges = readRanges(metadata);
    const dModel = integer(metadata, "kvasir.slice.d_model");
    const shape = { dModel, dFf: integer(metadata, "kvasir.slice.d_ff") };
    const byLayer = groupTensors(tensors);
    const layers = [...new Set(ranges.map((item) => item.layer))];
    if (layers.length !== byLayer.size) {
        throw new BrokenSliceError(`its metadata has layers ${layers}, its tensors have ${[...byLayer.keys()]}`);
    }
    const experts = layers.flatMap((layer) => {
        const ids = ranges.filter((item) => item.layer === layer).flatMap(idsOf);
        return layerPlaces(layer, ids, byLayer.get(layer) ?? new Map(), shape);
    });
    return {
        modelName: String(metadata.get("kvasir.slice.model")),
        modelFingerprint: String(metadata.get("kvasir.slice.fingerprint")),
        dModel,
        ranges,
        experts,
    };
}

/** @param {ExpertRange} range */
function idsOf({ start, stop }) {
    return Array.from({ length: stop - start }, (_, i) => start + i);
}

/** @param {GgufHeader["metadata"]} metadata @param {string} key */
function integer(metadata, key) {
    const value = metadata.get(key);
    if (typeof value !== "number" || !Number.isInteger(value) || value < 1) {
        throw new BrokenSliceError(`${key} is ${value}; it must be 1 or more`);
    }
    return value;
}

/** @param {GgufHeader["metadata"]} metadata @returns {ExpertRange[]} */
function readRanges(metadata) {
    const [layers, starts, stops] = ["layers", "starts", "stops"].map((key) => {
        const column = metadata.get(`kvasir.slice.${key}`);
        if (!Array.isArray(column)) throw new BrokenSliceError(`kvasir.slice.${key} is not a list`);
        return column;
    });
    if (layers.length === 0 || layers.length !== starts.length || layers.length !== stops.length) {
        throw new BrokenSliceError("kvasir.slice.layers, starts and stops must have the same length");
    }
    const ranges = layers.map((layer, i) => ({ layer, start: starts[i], stop: stops[i] }));
    const [nLayer, nExpert] = [integer(metadata, "kvasir.slice.n_layer"), integer(metadata, "kvasir.slice.n_expert")];
    const isInModel = (/** @type {ExpertRange} */ { layer, start, stop }) =>
        layer >= 0 && layer < nLayer && start >= 0 && start < stop && stop <= nExpert;
    if (!ranges.flatMap(Object.values).every(Number.isInteger) || !ranges.every(isInModel)) {
        throw new BrokenSliceError(`its ranges are not in a model of ${nLayer} layers of ${nExpert} experts`);
    }
    return ranges;
}

/**
 * @param {GgufHeader["tensors"]} tensors
 * @returns {Map<number, Map<string, TensorInfo>>} by layer, then "gate.weight" and so on
 */
function groupTensors(tensors) {
    /** @type {Map<number, Map<string, TensorInfo>>} */
    const byLayer = new Map();
    for (const info of tensors.values()) {
        const match = EXPERT_TENSOR.exec(info.name);
        if (match === null) throw new BrokenSliceError(`the tensor ${info.name} does not belong in a slice`);
        const named = byLayer.get(Number(match[1])) ?? new Map();
        named.set(`${match[2]}.${match[3]}`, info);
        byLayer.set(Number(match[1]), named);
    }
    return byLayer;
}

/**
 * @param {number} layer @param {number[]} ids @param {Map<string, TensorInfo>} named
 * @param {{dModel: number, dFf: number}} shape @returns {ExpertPlace[]}
 */
function layerPlaces(layer, ids, named, { dModel, dFf }) {
    const isFused = named.has("gate_up.weight");
    const weightKeys = isFused ? ["gate_up.weight", "down.weight"] : ["gate.weight", "up.weight", "down.weight"];
    const biasKeys = ["gate.bias", "up.bias", "gate_up.bias", "down.bias"].filter((key) => named.has(key));
    if (named.size !== weightKeys.length + biasKeys.length || weightKeys.some((key) => !named.has(key))) {
        const there = [...named.keys()].join(", ");
        throw new BrokenSliceError(`layer ${layer} has the tensors ${there}; gate, up and down are needed`);
    }
    /** @param {string} key @param {number[]} shape */
    const checked = (key, shape) => {
        const info = /** @type {TensorInfo} */ (named.get(key));
        if (info.shape.join() !== shape.join()) {
            throw new BrokenSliceError(`tensor ${info.name} has shape ${info.shape}; ${shape} is needed`);
        }
        return info;
    };
    const weights = weightKeys.map((key) => {
        const rows = key === "gate_up.weight" ? 2 * dFf : dFf;
        return checked(key, key === "down.weight" ? [ids.length, dModel, dFf] : [ids.length, rows, dModel]);
    });
    const digested = [...weights, ...biasKeys.map((key) => /** @type {TensorInfo} */ (named.get(key)))];
    return ids.map((expert, localId) => {
        const places = digested.map((info) => share(info, ids.length, localId));
        const [gate, up] = isFused ? halves(places[0]) : places;
        const down = places[weights.length - 1];
        const types = /** @type {ExpertPlace["types"]} */ ({
            gate: weights[0].type,
            up: weights[isFused ? 0 : 1].type,
            down: weights[weights.length - 1].type,
        });
        return { layer, expert, dModel, dFf, types, gate, up, down, digested: places, hasBias: biasKeys.length > 0 };
    });
}

/**
 * Return one expert's part of a tensor.
 * @param {TensorInfo} info
 * @param {number} nExperts
 * @param {number} localId
 * @returns {BytePlace}
 */
function share(info, nExperts, localId) {
    const nBytes = info.nBytes / nExperts;
    return { offset: info.offset + localId * nBytes, nBytes };
}

/** Split gate rows, which come first, from up rows. @param {BytePlace} place @returns {[BytePlace, BytePlace]} */
function halves({ offset, nBytes }) {
    return [
        { offset, nBytes: nBytes / 2 },
        { offset: offset + nBytes / 2, nBytes: nBytes / 2 },
    ];
}
