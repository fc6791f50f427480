/**
 * The wire's codec: frames to bytes and back, without I/O. Twin of kvasir/wire.py for whole messages; streams that
 * may be cut anywhere are TCP's, which a browser does not have. Any bytes either decode or throw a WireError; nothing
 * larger than the limits is ever allocated; tensors are views over the received bytes where these are aligned.
 *
 *   encode(frame, limits) -> Uint8Array[]      the buffers to send one after another; `limits` are the receiver's
 *   decode(bytes, limits) -> Frame             the one frame that the bytes are, all of them
 */

import { WireError } from "./errors.js";
import {
    FLAG_MORE,
    FLAG_REPLY_F16,
    HEADER_BYTES,
    Kind,
    PROTOCOL_LIMITS,
    WireType,
    checkHeader,
    checksum,
    encodedRowBytes,
    kindName,
    packHeader,
    unpackHeader,
} from "./wire_header.js";
import { packPayload, unpackPayload } from "./wire_payloads.js";

/** @typedef {import("./wire_frames.js").Frame} Frame */
/** @typedef {import("./wire_frames.js").Dispatch} Dispatch */
/** @typedef {import("./wire_frames.js").Result} Result */
/** @typedef {import("./wire_header.js").Header} Header */
/** @typedef {import("./wire_header.js").Limits} Limits */

/**
 * The frame as buffers to send one after another; tensors are not copied, so they must not change until they are sent.
 * @param {Frame} frame
 * @param {Readonly<Limits>} [limits] what the receiver accepts
 * @returns {Uint8Array[]}
 * @throws {WireError} for a frame that the receiver would not accept
 */
export function encode(frame, limits = PROTOCOL_LIMITS) {
    const { header, payload } = partsOf(frame);
    checkHeader(header, limits);
    return [packHeader(header, payload), ...payload];
}

/**
 * The one frame that `data` is, all of it.
 * @param {Uint8Array} data
 * @param {Readonly<Limits>} [limits] what this side accepts
 * @returns {Frame}
 * @throws {WireError}
 */
export function decode(data, limits = PROTOCOL_LIMITS) {
    if (data.length < HEADER_BYTES) {
        throw new WireError(`${data.length} bytes are no frame: the header alone has ${HEADER_BYTES}`);
    }
    const { header, check } = unpackHeader(data, limits);
    if (data.length !== HEADER_BYTES + header.payloadBytes) {
        throw new WireError(`frame of ${data.length} bytes, its header says ${HEADER_BYTES + header.payloadBytes}`);
    }
    const payload = data.subarray(HEADER_BYTES);
    const found = checksum(data, [payload]);
    if (found !== check) {
        throw new WireError(`${kindName(header.kind)} frame says checksum ${check}, its bytes have ${found}`);
    }
    if (header.kind === Kind.DISPATCH) return dispatchOf(header, payload);
    if (header.kind === Kind.RESULT) return resultOf(header, payload);
    return unpackPayload(header, payload);
}

/**
 * Buffers one after another in one.
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
    if (frame.kind === Kind.RESULT) return resultParts(frame);
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
    const flags = (frame.isReplyF16 ? FLAG_REPLY_F16 : 0) | (frame.hasMore ? FLAG_MORE : 0);
    const payloadBytes = pairs.byteLength + rows.length;
    const header = { kind, wireType: rowFormat, flags, request, layer, nRows, nPairs, dModel, payloadBytes };
    return { header, payload: [bytesOf(pairs), rows] };
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

/** @param {Header} header @param {Uint8Array} payload @returns {Dispatch} */
function dispatchOf({ request, layer, wireType, flags, nRows, nPairs, dModel }, payload) {
    const pairs = new Uint32Array(...alignedPart(payload, 8 * nPairs, 4));
    return {
        kind: Kind.DISPATCH,
        request,
        layer,
        rowFormat: wireType,
        dModel,
        nRows,
        rows: payload.subarray(8 * nPairs),
        pairRows: pairs.subarray(0, nPairs),
        pairIds: pairs.subarray(nPairs),
        isReplyF16: (flags & FLAG_REPLY_F16) !== 0,
        hasMore: (flags & FLAG_MORE) !== 0,
    };
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
