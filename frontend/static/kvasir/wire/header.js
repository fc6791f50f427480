/**
 * The fixed header that opens every frame: layout, limits, checksum. Twin of kvasir/wire/header.py; the byte tables are
 * in docs/reference/wire.md. It knows nothing of sockets and never looks into a payload.
 */

import { crc32 } from "./checksum.js";
import { WireError, WireVersionError } from "./errors.js";

/** "KVSR", read as a little-endian u32. */
const MAGIC = 0x5253564b;
export const VERSION = 2;
export const HEADER_BYTES = 36;
/** The header's bytes under the checksum: all before it. */
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
 * What one side accepts in Dispatch and Result. Each side states its own at the handshake, the other obeys.
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
 * Checked limits; what `stated` leaves out is the protocol's.
 * @param {Partial<Limits>} [stated]
 * @returns {Readonly<Limits>}
 * @throws {WireError} for a limit that nobody may state
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
 * Bytes of one row on the wire.
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
 * The most bytes that packed sums of some rows can have.
 * @param {number} nRows
 * @param {number} dModel
 * @returns {number}
 */
export function sumsBytes(nRows, dModel) {
    return nRows * (4 * dModel + Math.floor(dModel / KX1_VALUES));
}

/**
 * The header's bytes, with the checksum over itself and `payload`.
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
    numbers.forEach((number, i) => view.setUint32(8 + 4 * i, number, true));
    view.setUint32(CHECKED_BYTES, checksum(data, payload), true);
    return data;
}

/** @param {number} value @param {number} most @returns {boolean} */
export function isWithin(value, most) {
    return Number.isInteger(value) && value >= 0 && value <= most;
}

/**
 * CRC-32 over the first 32 header bytes and then the payload.
 * @param {Uint8Array} head
 * @param {readonly Uint8Array[]} payload
 * @returns {number}
 */
export function checksum(head, payload) {
    return payload.reduce((crc, part) => crc32(part, crc), crc32(head.subarray(0, CHECKED_BYTES)));
}

/**
 * The header at the start of `data` (at least 36 bytes) and its checksum; its counts are not checked yet.
 * @param {Uint8Array} data
 * @returns {{header: Header, check: number}}
 * @throws {WireVersionError} for another version (except of a Refuse, which every version can read)
 * @throws {WireError} for anything else that is not a header
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
