/**
 * Reads the header of a slice's GGUF file: metadata and tensor table, with every bound checked. `slice_file.js` calls
 * it. It never reads weights.
 */

import { BrokenSliceError } from "../errors.js";

/**
 * ggml's types that a slice may hold: name, weights of a block, bytes of a block.
 * @type {Record<number, [string, number, number]>}
 */
const TYPES = {
    0: ["F32", 1, 4],
    1: ["F16", 1, 2],
    8: ["Q8_0", 32, 34],
    12: ["Q4_K", 256, 144],
    13: ["Q5_K", 256, 176],
    14: ["Q6_K", 256, 210],
};
const DEFAULT_ALIGNMENT = 32;
const TENSORS_MOST = 1 << 18;
const PAIRS_MOST = 1 << 16;
const ITEMS_MOST = 1 << 22;
const DIMS_MOST = 4;

/** Bytes of GGUF's scalar value types by number; 8 is text, 9 an array. @type {Record<number, number>} */
const SCALAR_BYTES = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 };

/** @typedef {number | string | boolean | number[] | null} MetadataValue  `null`: of a type that no slice needs */
/**
 * @typedef {{name: string, shape: number[], type: string, offset: number, nBytes: number}} TensorInfo  shape with the
 *   outermost first, offset absolute
 */
/** @typedef {{metadata: Map<string, MetadataValue>, tensors: Map<string, TensorInfo>}} GgufHeader */

/**
 * Parse the header of a file of `nBytes` bytes whose first bytes are `bytes`. Throws BrokenSliceError unless it is a
 * valid little-endian GGUF file of version 2 or 3.
 * @param {Uint8Array} bytes @param {number} nBytes @returns {GgufHeader}
 */
export function readGgufHeader(bytes, nBytes) {
    const cursor = new Cursor(bytes);
    const [magic, version] = [cursor.u32(), cursor.u32()];
    if (magic !== 0x46554747) throw new BrokenSliceError("not a GGUF file: its first bytes are not GGUF");
    if (version !== 2 && version !== 3)
        throw new BrokenSliceError(`GGUF version ${version} is not supported; 2 and 3 are`);
    const [nTensors, nPairs] = [cursor.count(TENSORS_MOST, "tensors"), cursor.count(PAIRS_MOST, "metadata")];
    /** @type {GgufHeader["metadata"]} */
    const metadata = new Map();
    for (let i = 0; i < nPairs; i++) {
        const key = cursor.text();
        metadata.set(key, cursor.value(cursor.u32()));
    }
    const found = Array.from({ length: nTensors }, () => readTensor(cursor));
    const told = metadata.get("general.alignment");
    const alignment = typeof told === "number" && told > 0 ? told : DEFAULT_ALIGNMENT;
    const dataStart = Math.ceil(cursor.position / alignment) * alignment;
    const placed = found.map((info) => ({ ...info, offset: info.offset + dataStart }));
    checkPlaces(placed, nBytes);
    return { metadata, tensors: new Map(placed.map((info) => [info.name, info])) };
}

/** @param {Cursor} cursor @returns {TensorInfo} */
function readTensor(cursor) {
    const name = cursor.text();
    const nDims = cursor.u32();
    if (nDims < 1 || nDims > DIMS_MOST) {
        throw new BrokenSliceError(`tensor ${name} has ${nDims} dimensions; 1 to ${DIMS_MOST} are allowed`);
    }
    const dims = Array.from({ length: nDims }, () => cursor.u64());
    const number = cursor.u32();
    const offset = cursor.u64();
    const [type, blockWeights, blockBytes] = TYPES[number] ?? [`ggml type ${number}`, 1, 0];
    if (blockBytes === 0) throw new BrokenSliceError(`tensor ${name} has ${type}, which no kernel here supports`);
    if (dims.includes(0) || dims[0] % blockWeights !== 0) {
        throw new BrokenSliceError(
            `tensor ${name} has dimensions ${dims}; the first must be a whole number of ${type} blocks`,
        );
    }
    const nBytes = (dims.reduce((product, dim) => product * dim, 1) / blockWeights) * blockBytes;
    return { name, shape: dims.reverse(), type, offset, nBytes };
}

/**
 * Throw unless every tensor is inside the file and none overlaps another.
 * @param {TensorInfo[]} tensors
 * @param {number} nBytes
 */
function checkPlaces(tensors, nBytes) {
    let stop = 0;
    for (const info of [...tensors].sort((left, right) => left.offset - right.offset)) {
        if (info.offset < stop) throw new BrokenSliceError(`tensor ${info.name} overlaps the one before it`);
        stop = info.offset + info.nBytes;
        if (stop > nBytes) {
            throw new BrokenSliceError(`tensor ${info.name} ends at byte ${stop}, the file at ${nBytes}`);
        }
    }
}

/** A position in the header. Every read is checked against the end. */
class Cursor {
    /** @param {Uint8Array} bytes */
    constructor(bytes) {
        this.bytes = bytes;
        this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
        this.position = 0;
    }

    /** Advance. @param {number} nBytes @returns {number} the position before */
    need(nBytes) {
        const start = this.position;
        if (!(nBytes >= 0 && nBytes <= this.bytes.length - start)) {
            const { length } = this.bytes;
            throw new BrokenSliceError(`the header needs ${nBytes} bytes at ${start} and has ${length} in all`);
        }
        this.position += nBytes;
        return start;
    }

    u32() {
        return this.view.getUint32(this.need(4), true);
    }

    u64() {
        const value = this.view.getBigUint64(this.need(8), true);
        if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw new BrokenSliceError(`the header has the number ${value}`);
        return Number(value);
    }

    /** @param {number} most @param {string} what */
    count(most, what) {
        const value = this.u64();
        if (value > most) throw new BrokenSliceError(`the header claims ${value} ${what}; at most ${most} are allowed`);
        return value;
    }

    text() {
        const nBytes = this.u64();
        const start = this.need(nBytes);
        return new TextDecoder().decode(this.bytes.subarray(start, start + nBytes));
    }

    /** Read a metadata value. @param {number} type @returns {MetadataValue} */
    value(type) {
        if (type === 8) return this.text();
        if (type !== 9) return this.scalar(type);
        const itemType = this.u32();
        const nItems = this.count(ITEMS_MOST, "items of an array");
        if (itemType in SCALAR_BYTES) return Array.from({ length: nItems }, () => Number(this.scalar(itemType)));
        if (itemType !== 8) throw new BrokenSliceError(`the header has an array of type ${itemType}`);
        for (let i = 0; i < nItems; i++) this.text();
        return null;
    }

    /** @param {number} type @returns {number | boolean} */
    scalar(type) {
        const nBytes = SCALAR_BYTES[type];
        if (nBytes === undefined) throw new BrokenSliceError(`the header has a value of unknown type ${type}`);
        const start = this.need(nBytes);
        switch (type) {
            case 0:
                return this.view.getUint8(start);
            case 1:
                return this.view.getInt8(start);
            case 2:
                return this.view.getUint16(start, true);
            case 3:
                return this.view.getInt16(start, true);
            case 4:
                return this.view.getUint32(start, true);
            case 5:
                return this.view.getInt32(start, true);
            case 6:
                return this.view.getFloat32(start, true);
            case 7:
                return this.view.getUint8(start) !== 0;
            case 10:
                return Number(this.view.getBigUint64(start, true));
            case 11:
                return Number(this.view.getBigInt64(start, true));
            default:
                return this.view.getFloat64(start, true);
        }
    }
}
