/**
 * The fixed header of every frame: layout, limits, checksum, and the checks of both ends. The byte tables are in
 * docs/reference/wire.md. Nothing here touches sockets or looks into a payload.
 */

import { WireError, WireVersionError } from "../errors.js";
import { crc32 } from "./checksum.js";

/** "KVSR", read as a little-endian u32. */
const MAGIC = 0x5253564b;
export const VERSION = 2;
export const HEADER_BYTES = 36;
/** Bytes of the header that the checksum covers: all before it. */
const CHECKED_BYTES = 32;

export const MAX_PAYLOAD_BYTES = 8 * 1024 * 1024;
/** Of a payload without a tensor. */
export const MAX_CONTROL_BYTES = 1024 * 1024;
export const MAX_ROWS = 8192;
export const MAX_PAIRS = 65_536;
export const MAX_D_MODEL = 65_536;
export const MAX_U32 = 2 ** 32 - 1;

/** Of a block of rows in KX1, and of sums. */
export const KX1_VALUES = 256;
const KX1_BLOCK_BYTES = 261;

/** What a frame is. */
export const Kind = Object.freeze({
    HELLO: 1,
    WELCOME: 2,
    REFUSE: 3,
    DISPATCH: 4,
    RESULT: 5,
    FAULT: 6,
    PAUSE: 7,
    GOAWAY: 8,
    PING: 9,
    PONG: 10,
});

/** How the values of a payload are written. */
export const WireType = Object.freeze({ NONE: 0, F32: 1, KX1: 2, F16: 3, SUMS: 4 });

/** Dispatch: answer in f16 where the values fit. */
export const FLAG_REPLY_F16 = 1;
/** Dispatch: another one of the same layer follows at once. */
export const FLAG_MORE = 2;
/** Dispatch: weights and exponents are there; answer with sums. */
export const FLAG_SUMS = 4;

/**
 * What one side accepts in Dispatch and Result. Each side states its limits in the handshake; the other keeps them.
 * @typedef {object} Limits
 * @property {number} maxPayloadBytes
 * @property {number} maxRows
 * @property {number} maxPairs
 * @property {number} maxInflightBytes
 */

/**
 * @typedef {object} Header
 * @property {number} kind
 * @property {number} wireType
 * @property {number} flags
 * @property {number} request
 * @property {number} layer
 * @property {number} nRows
 * @property {number} nPairs
 * @property {number} dModel
 * @property {number} payloadBytes
 */

/**
 * Return checked limits; those missing in `stated` are the protocol's.
 * @param {Partial<Limits>} [stated]
 * @returns {Readonly<Limits>}
 * @throws {WireError} if a limit is outside the protocol's
 */
export function makeLimits(stated = {}) {
    const limits = {
        maxPayloadBytes: MAX_PAYLOAD_BYTES,
        maxRows: MAX_ROWS,
        maxPairs: MAX_PAIRS,
        maxInflightBytes: 8 * MAX_PAYLOAD_BYTES,
        ...stated,
    };
    checkLimit("max_payload_bytes", limits.maxPayloadBytes, MAX_PAYLOAD_BYTES);
    checkLimit("max_rows", limits.maxRows, MAX_ROWS);
    checkLimit("max_pairs", limits.maxPairs, MAX_PAIRS);
    checkLimit("max_inflight_bytes", limits.maxInflightBytes, MAX_U32);
    return Object.freeze(limits);
}

/** @param {string} name @param {number} value @param {number} most */
function checkLimit(name, value, most) {
    if (!Number.isInteger(value) || value < 1 || value > most) {
        throw new WireError(`limit ${name} is ${value}, 1 to ${most} is allowed`);
    }
}

export const PROTOCOL_LIMITS = makeLimits();

/**
 * @param {number} kind
 * @returns {string} the name of a kind, for messages
 */
export function kindName(kind) {
    return Object.entries(Kind).find(([, number]) => number === kind)?.[0] ?? `kind ${kind}`;
}

/**
 * @param {number} wireType
 * @returns {string} the name of a value type, for messages
 */
export function wireTypeName(wireType) {
    return Object.entries(WireType).find(([, number]) => number === wireType)?.[0] ?? `type ${wireType}`;
}

/**
 * Return the bytes of one row on the wire.
 * @param {number} rowFormat WireType.F32 or WireType.KX1
 * @param {number} dModel
 * @returns {number}
 * @throws {WireError} when the format has no row of this width
 */
export function encodedRowBytes(rowFormat, dModel) {
    if (rowFormat === WireType.F32) return 4 * dModel;
    if (dModel % KX1_VALUES !== 0) {
        throw new WireError(`KX1 rows have whole blocks of ${KX1_VALUES} values; d_model is ${dModel}`);
    }
    return (dModel / KX1_VALUES) * KX1_BLOCK_BYTES;
}

/**
 * Return the most bytes that packed sums of `nRows` rows can have.
 * @param {number} nRows
 * @param {number} dModel
 * @returns {number}
 */
export function sumsBytes(nRows, dModel) {
    return nRows * (4 * dModel + Math.floor(dModel / KX1_VALUES));
}

/**
 * Return the header's bytes, with the checksum over itself and `payload`.
 * @param {Header} header
 * @param {readonly Uint8Array[]} payload
 * @returns {Uint8Array}
 * @throws {WireError} when a field does not fit its width
 */
export function packHeader(header, payload) {
    const data = new Uint8Array(HEADER_BYTES);
    const view = new DataView(data.buffer);
    const { kind, wireType, flags, request, layer, nRows, nPairs, dModel, payloadBytes } = header;
    const numbers = [request, layer, nRows, nPairs, dModel, payloadBytes];
    if (![kind, wireType, flags].every((n) => isWithin(n, 0xff)) || !numbers.every((n) => isWithin(n, MAX_U32))) {
        throw new WireError(`${kindName(kind)}: a header field does not fit its width: ${JSON.stringify(header)}`);
    }
    view.setUint32(0, MAGIC, true);
    data.set([VERSION, kind, wireType, flags], 4);
    for (const [i, number] of numbers.entries()) view.setUint32(8 + 4 * i, number, true);
    view.setUint32(CHECKED_BYTES, checksum(data, payload), true);
    return data;
}

/** @param {number} value @param {number} most @returns {boolean} */
export function isWithin(value, most) {
    return Number.isInteger(value) && value >= 0 && value <= most;
}

/**
 * Return the CRC-32 over the first 32 header bytes and then the payload.
 * @param {Uint8Array} head
 * @param {readonly Uint8Array[]} payload
 * @returns {number}
 */
export function checksum(head, payload) {
    return payload.reduce((crc, part) => crc32(part, crc), crc32(head.subarray(0, CHECKED_BYTES)));
}

/**
 * Return the header at the start of `data` (at least 36 bytes) and its checksum. Its counts are not checked yet.
 * @param {Uint8Array} data
 * @returns {{header: Header, check: number}}
 * @throws {WireVersionError} for another version (except of a Refuse, which every version can read)
 * @throws {WireError} if the bytes are not a header
 */
export function unpackHeader(data) {
    const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    const [version, kind, wireType, flags] = data.subarray(4, 8);
    if (view.getUint32(0, true) !== MAGIC) {
        throw new WireError(`frame starts with bytes ${data.subarray(0, 4).join(" ")}, "KVSR" is needed`);
    }
    if (version !== VERSION && kind !== Kind.REFUSE) {
        throw new WireVersionError(`wire version ${version} from the other side, this side speaks ${VERSION}`);
    }
    if (kind < Kind.HELLO || kind > Kind.PONG) throw new WireError(`frame kind ${kind} is unknown; 1 to 10 exist`);
    if (wireType > WireType.SUMS) throw new WireError(`value type ${wireType} is unknown; 0 to 4 exist`);
    const [request, layer, nRows, nPairs, dModel, payloadBytes, check] = [8, 12, 16, 20, 24, 28, 32].map((at) =>
        view.getUint32(at, true),
    );
    return { header: { kind, wireType, flags, request, layer, nRows, nPairs, dModel, payloadBytes }, check };
}

/** @type {readonly number[]} */
const DISPATCH_TYPES = [WireType.F32, WireType.KX1];
/** @type {readonly number[]} */
const RESULT_TYPES = [WireType.F32, WireType.F16, WireType.SUMS];

/**
 * Check that the counts agree with each other and with `limits`. Senders call it before they send, receivers before
 * they read a payload.
 * @param {Header} header
 * @param {Readonly<Limits>} limits
 * @throws {WireError}
 */
export function checkHeader(header, limits) {
    const isTensor = header.kind === Kind.DISPATCH || header.kind === Kind.RESULT;
    const most = isTensor ? limits.maxPayloadBytes : MAX_CONTROL_BYTES;
    const name = kindName(header.kind);
    if (header.payloadBytes > most) {
        throw new WireError(`${name} payload of ${header.payloadBytes} bytes is over the limit of ${most}`);
    }
    if (!isTensor) {
        checkPlain(header, name);
        return;
    }
    if (header.kind === Kind.DISPATCH) checkDispatch(header, limits);
    else checkResult(header, limits);
    checkCounts(header, limits, name);
    checkTensorBytes(header, limits, name);
}

/** @param {Header} header @param {string} name */
function checkPlain(header, name) {
    const { wireType, flags, layer, nRows, nPairs, dModel, request, kind } = header;
    if (wireType || flags || layer || nRows || nPairs || dModel) {
        throw new WireError(`${name} has a header field set that this kind does not use`);
    }
    if (request && kind !== Kind.FAULT && kind !== Kind.PING && kind !== Kind.PONG) {
        throw new WireError(`${name} has request number ${request}; this kind has none`);
    }
}

/** @param {Header} header @param {Readonly<Limits>} limits */
function checkDispatch(header, limits) {
    const { wireType, flags, nRows } = header;
    if (!DISPATCH_TYPES.includes(wireType)) {
        throw new WireError(`DISPATCH cannot carry values of type ${wireTypeName(wireType)}`);
    }
    if (flags & ~(FLAG_REPLY_F16 | FLAG_MORE | FLAG_SUMS)) throw new WireError(`DISPATCH has unknown flags ${flags}`);
    if (flags & FLAG_SUMS && flags & FLAG_REPLY_F16) {
        throw new WireError("DISPATCH asks for sums and for f16; sums are integers");
    }
    checkRows(nRows, limits);
}

/** @param {Header} header @param {Readonly<Limits>} limits */
function checkResult(header, limits) {
    const { wireType, flags, nRows } = header;
    if (!RESULT_TYPES.includes(wireType)) {
        throw new WireError(`RESULT cannot carry values of type ${wireTypeName(wireType)}`);
    }
    if (flags) throw new WireError(`RESULT has unknown flags ${flags}`);
    if (wireType === WireType.SUMS) checkRows(nRows, limits);
    else if (nRows) throw new WireError(`RESULT has n_rows ${nRows}; it counts its rows as pairs`);
}

/** @param {number} nRows @param {Readonly<Limits>} limits */
function checkRows(nRows, limits) {
    if (!(nRows >= 1 && nRows <= limits.maxRows)) {
        throw new WireError(`${nRows} rows in one frame, 1 to ${limits.maxRows} is allowed`);
    }
}

/** @param {Header} header @param {Readonly<Limits>} limits @param {string} name */
function checkCounts(header, limits, name) {
    const { request, dModel, nPairs, wireType, flags } = header;
    if (request === 0) throw new WireError(`${name} has request number 0; numbers start at 1`);
    if (!(dModel >= 1 && dModel <= MAX_D_MODEL)) {
        throw new WireError(`d_model is ${dModel}, 1 to ${MAX_D_MODEL} is allowed`);
    }
    if (!(nPairs >= 1 && nPairs <= limits.maxPairs)) {
        throw new WireError(`${nPairs} pairs in one frame, 1 to ${limits.maxPairs} is allowed`);
    }
    if ((flags & FLAG_SUMS || wireType === WireType.SUMS) && dModel % KX1_VALUES !== 0) {
        throw new WireError(`sums have whole blocks of ${KX1_VALUES} values; d_model is ${dModel}`);
    }
}

/** @param {Header} header @param {Readonly<Limits>} limits @param {string} name */
function checkTensorBytes(header, limits, name) {
    const { payloadBytes, nRows, nPairs, dModel } = header;
    const [least, most] = tensorBytes(header);
    if (!(payloadBytes >= least && payloadBytes <= most)) {
        const wanted = least === most ? most : `${least} to ${most}`;
        throw new WireError(
            `${name} with ${nRows} rows, ${nPairs} pairs and d_model ${dModel} ` +
                `needs a payload of ${wanted} bytes, not ${payloadBytes}`,
        );
    }
    if (most > limits.maxPayloadBytes) {
        throw new WireError(
            `${name} of sums that may have ${most} bytes is over the limit of ${limits.maxPayloadBytes}`,
        );
    }
}

/**
 * Return the least and the most payload bytes of a Dispatch or Result with these counts.
 * @param {Header} header
 * @returns {[number, number]}
 */
function tensorBytes({ kind, wireType, flags, nRows, nPairs, dModel }) {
    if (wireType === WireType.SUMS) return [nRows * (dModel / KX1_VALUES), sumsBytes(nRows, dModel)];
    let exact = nPairs * dModel * (wireType === WireType.F16 ? 2 : 4);
    if (kind === Kind.DISPATCH) {
        const ofOrder = flags & FLAG_SUMS ? 4 * (nPairs + nRows) : 0;
        exact = 8 * nPairs + ofOrder + nRows * encodedRowBytes(wireType, dModel);
    }
    return [exact, exact];
}
