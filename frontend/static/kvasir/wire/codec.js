/**
 * The wire's codec: frames to bytes and back, without I/O. It takes whole messages; a browser has no TCP streams. Any
 * bytes either decode or throw a WireError, and nothing larger than the limits is allocated. Tensors are views over the
 * received bytes if these are aligned; sums are packed, and so copied.
 *
 *   encode(frame, limits) -> Uint8Array[]      the buffers to send one after another; `limits` are the receiver's
 *   decode(bytes, limits) -> Frame             the bytes must be exactly one frame
 */

import { KernelError, WireError } from "../errors.js";
import { packSums, unpackSums } from "../kernels/sums.js";
import {
    checkHeader,
    checksum,
    encodedRowBytes,
    FLAG_MORE,
    FLAG_REPLY_F16,
    FLAG_SUMS,
    HEADER_BYTES,
    Kind,
    kindName,
    PROTOCOL_LIMITS,
    packHeader,
    unpackHeader,
    WireType,
} from "./header.js";
import { packPayload, unpackPayload } from "./payloads.js";

/** @typedef {import("./frames.js").Frame} Frame */
/** @typedef {import("./frames.js").Dispatch} Dispatch */
/** @typedef {import("./frames.js").Result} Result */
/** @typedef {import("./frames.js").SumOrder} SumOrder */
/** @typedef {import("./frames.js").SumResult} SumResult */
/** @typedef {import("./header.js").Header} Header */
/** @typedef {import("./header.js").Limits} Limits */

/**
 * Return the frame as buffers to send one after another. Tensors are not copied and must not change until they are
 * sent.
 * @param {Frame} frame
 * @param {Readonly<Limits>} [limits] what the receiver accepts
 * @returns {Uint8Array[]}
 * @throws {WireError} if the receiver would not accept the frame
 */
export function encode(frame, limits = PROTOCOL_LIMITS) {
    const { header, payload } = partsOf(frame);
    checkHeader(header, limits);
    return [packHeader(header, payload), ...payload];
}

/**
 * Decode `data`, which must be exactly one frame.
 * @param {Uint8Array} data
 * @param {Readonly<Limits>} [limits] what this side accepts
 * @returns {Frame}
 * @throws {WireError}
 */
export function decode(data, limits = PROTOCOL_LIMITS) {
    if (data.length < HEADER_BYTES) {
        throw new WireError(`${data.length} bytes are not a frame: the header alone has ${HEADER_BYTES}`);
    }
    const { header, check } = unpackHeader(data);
    checkHeader(header, limits);
    if (data.length !== HEADER_BYTES + header.payloadBytes) {
        throw new WireError(
            `frame of ${data.length} bytes, its header announces ${HEADER_BYTES + header.payloadBytes}`,
        );
    }
    const payload = data.subarray(HEADER_BYTES);
    const found = checksum(data, [payload]);
    if (found !== check) {
        throw new WireError(`${kindName(header.kind)} frame has checksum ${check}, its bytes give ${found}`);
    }
    if (header.kind === Kind.DISPATCH) return dispatchOf(header, payload);
    if (header.kind === Kind.RESULT) {
        return header.wireType === WireType.SUMS ? sumResultOf(header, payload) : resultOf(header, payload);
    }
    return unpackPayload(header, payload);
}

/**
 * Concatenate buffers.
 * @param {readonly Uint8Array[]} buffers
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function join(buffers) {
    const whole = new Uint8Array(buffers.reduce((sum, buffer) => sum + buffer.length, 0));
    let at = 0;
    for (const buffer of buffers) {
        whole.set(buffer, at);
        at += buffer.length;
    }
    return whole;
}

/** @param {Frame} frame @returns {{header: Header, payload: Uint8Array[]}} */
function partsOf(frame) {
    if (frame.kind === Kind.DISPATCH) return dispatchParts(frame);
    if (frame.kind === Kind.RESULT) return "sums" in frame ? sumResultParts(frame) : resultParts(frame);
    const { request, payload } = packPayload(frame);
    const counts = { wireType: WireType.NONE, flags: 0, layer: 0, nRows: 0, nPairs: 0, dModel: 0 };
    const header = { kind: frame.kind, request, ...counts, payloadBytes: payload.length };
    return { header, payload: payload.length ? [payload] : [] };
}

/** @param {Dispatch} frame @returns {{header: Header, payload: Uint8Array[]}} */
function dispatchParts(frame) {
    const { kind, request, layer, rowFormat, dModel, nRows, rows, pairRows, pairIds } = frame;
    const nPairs = pairIds.length;
    const width = encodedRowBytes(rowFormat, dModel);
    if (pairRows.length !== nPairs) throw new WireError(`${pairRows.length} row numbers for ${nPairs} expert ids`);
    if (rows.length !== nRows * width) {
        throw new WireError(`rows are ${rows.length} bytes, ${nRows} rows of ${width} are needed`);
    }
    const pairs = new Uint32Array(2 * nPairs);
    pairs.set(pairRows);
    pairs.set(pairIds, nPairs);
    const flags =
        (frame.isReplyF16 ? FLAG_REPLY_F16 : 0) | (frame.hasMore ? FLAG_MORE : 0) | (frame.sums ? FLAG_SUMS : 0);
    const order = frame.sums ? orderParts(frame.sums, nPairs, nRows) : [];
    const payloadBytes = pairs.byteLength + order.reduce((sum, part) => sum + part.length, 0) + rows.length;
    const header = { kind, wireType: rowFormat, flags, request, layer, nRows, nPairs, dModel, payloadBytes };
    return { header, payload: [bytesOf(pairs), ...order, rows] };
}

/** @param {SumOrder} order @param {number} nPairs @param {number} nRows @returns {Uint8Array[]} */
function orderParts({ weights, exponents }, nPairs, nRows) {
    if (weights.length !== nPairs || exponents.length !== nRows) {
        const found = `${weights.length} weights and ${exponents.length} exponents`;
        throw new WireError(`${found} for ${nPairs} pairs of ${nRows} rows`);
    }
    return [bytesOf(weights), bytesOf(exponents)];
}

/** @param {Result} frame @returns {{header: Header, payload: Uint8Array[]}} */
function resultParts({ kind, request, layer, nPairs, dModel, outputs }) {
    if (outputs.length !== nPairs * dModel) {
        throw new WireError(`outputs are ${outputs.length} values, [${nPairs}, ${dModel}] are needed`);
    }
    const wireType = outputs instanceof Float32Array ? WireType.F32 : WireType.F16;
    const payloadBytes = outputs.byteLength;
    const header = { kind, wireType, flags: 0, request, layer, nRows: 0, nPairs, dModel, payloadBytes };
    return { header, payload: [bytesOf(outputs)] };
}

/** @param {SumResult} frame @returns {{header: Header, payload: Uint8Array[]}} */
function sumResultParts({ kind, request, layer, nRows, nPairs, dModel, sums }) {
    if (sums.length !== nRows * dModel) {
        throw new WireError(`sums are ${sums.length} values, [${nRows}, ${dModel}] are needed`);
    }
    const packed = unlessRefused(() => packSums(sums, dModel));
    const counts = { nRows, nPairs, dModel, payloadBytes: packed.length };
    return { header: { kind, wireType: WireType.SUMS, flags: 0, request, layer, ...counts }, payload: [packed] };
}

/** @param {Header} header @param {Uint8Array} payload @returns {Dispatch} */
function dispatchOf({ request, layer, wireType, flags, nRows, nPairs, dModel }, payload) {
    const pairs = new Uint32Array(...alignedPart(payload, 8 * nPairs, 4));
    const hasOrder = (flags & FLAG_SUMS) !== 0;
    const rowsAt = 8 * nPairs + (hasOrder ? 4 * (nPairs + nRows) : 0);
    return {
        kind: Kind.DISPATCH,
        request,
        layer,
        rowFormat: wireType,
        dModel,
        nRows,
        rows: payload.subarray(rowsAt),
        pairRows: pairs.subarray(0, nPairs),
        pairIds: pairs.subarray(nPairs),
        isReplyF16: (flags & FLAG_REPLY_F16) !== 0,
        hasMore: (flags & FLAG_MORE) !== 0,
        sums: hasOrder ? orderOf(payload.subarray(8 * nPairs, rowsAt), nPairs) : null,
    };
}

/** @param {Uint8Array} data @param {number} nPairs @returns {SumOrder} */
function orderOf(data, nPairs) {
    const [weights, exponents] = [data.subarray(0, 4 * nPairs), data.subarray(4 * nPairs)];
    return {
        weights: new Float32Array(...alignedPart(weights, weights.length, 4)),
        exponents: new Int32Array(...alignedPart(exponents, exponents.length, 4)),
    };
}

/** @param {Header} header @param {Uint8Array} payload @returns {SumResult} */
function sumResultOf({ request, layer, nRows, nPairs, dModel }, payload) {
    const sums = unlessRefused(() => unpackSums(payload, nRows, dModel));
    return { kind: Kind.RESULT, request, layer, nRows, nPairs, dModel, sums };
}

/**
 * @template T
 * @param {() => T} convert between sums and their packed form
 * @returns {T}
 * @throws {WireError} if the values cannot be sent
 */
function unlessRefused(convert) {
    try {
        return convert();
    } catch (error) {
        throw error instanceof KernelError ? new WireError(error.message) : error;
    }
}

/** @param {Header} header @param {Uint8Array} payload @returns {Result} */
function resultOf({ request, layer, wireType, nPairs, dModel }, payload) {
    const outputs =
        wireType === WireType.F16
            ? new Uint16Array(...alignedPart(payload, payload.length, 2))
            : new Float32Array(...alignedPart(payload, payload.length, 4));
    return { kind: Kind.RESULT, request, layer, nPairs, dModel, outputs };
}

/**
 * What a typed array of `itemBytes` needs to be a view over the first bytes of `payload`, or over a copy of them where
 * they do not begin at a multiple of that. (Typed arrays are little-endian, as the wire is, wherever browsers run.)
 * @param {Uint8Array} payload
 * @param {number} nBytes
 * @param {number} itemBytes
 * @returns {[ArrayBuffer, number, number]}
 */
function alignedPart(payload, nBytes, itemBytes) {
    const isAligned = payload.byteOffset % itemBytes === 0;
    const part = isAligned ? payload.subarray(0, nBytes) : payload.slice(0, nBytes);
    return [/** @type {ArrayBuffer} */ (part.buffer), part.byteOffset, nBytes / itemBytes];
}

/** @param {ArrayBufferView} array @returns {Uint8Array} */
function bytesOf(array) {
    return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}
