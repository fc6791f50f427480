/**
 * Frames as data: one frozen shape for each `kind`. Both ends of an edge build and receive these; codec.js turns them
 * into bytes and back. Nothing here does I/O or checks whether a worker can compute a request.
 */

import { Kind, PROTOCOL_LIMITS } from "./header.js";

/** @typedef {import("./header.js").Limits} Limits */
/** @typedef {import("../slicing/expert_ranges.js").ExpertRange} ExpertRange */

export const MAX_TEXT_BYTES = 1024;

/** The sender's role: an ASCII letter. */
export const Role = Object.freeze({ BACKBONE: 66, WORKER: 87 });

/** The part of a hello that did not match. */
export const RefuseCode = Object.freeze({
    VERSION: 1,
    ROLE: 2,
    MODEL: 3,
    KERNEL: 4,
    TOKEN: 5,
    FULL: 6,
    DEADLINE: 7,
    MALFORMED: 8,
    STOPPING: 9,
});

/** Why a dispatch was not computed. PROTOCOL and GONE have request number 0 and end the edge. */
export const FaultCode = Object.freeze({
    PROTOCOL: 1,
    UNKNOWN_LAYER: 2,
    BAD_IDS: 3,
    BAD_ROWS: 4,
    TOO_LARGE: 5,
    INTERNAL: 6,
    BUSY: 7,
    GONE: 8,
});

/**
 * First frame of the connecting side. Fingerprints are 64 hex digits.
 * @typedef {object} Hello
 * @property {1} kind
 * @property {number} role
 * @property {string} modelFingerprint
 * @property {string} kernelFingerprint
 * @property {string} kernel
 * @property {Readonly<Limits>} limits
 * @property {string} name
 * @property {string} token
 */

/**
 * The worker's answer to a hello that it accepts. Ranges ascend by layer and start and do not overlap; local ids of a
 * layer count through its ranges in order.
 * @typedef {object} Welcome
 * @property {2} kind
 * @property {string} modelFingerprint
 * @property {string} kernelFingerprint
 * @property {string} kernel
 * @property {number} rowFormat WireType.F32 or WireType.KX1
 * @property {number} dModel
 * @property {readonly ExpertRange[]} ranges
 * @property {Readonly<Limits>} limits
 * @property {string} name
 */

/** The answer to a hello that is not accepted. @typedef {{kind: 3, code: number, message: string}} Refuse */

/**
 * What a worker needs to answer with one row of integers for each row, instead of an output for each pair (docs/reference/kx1.md,
 * step 7).
 * @typedef {object} SumOrder
 * @property {Float32Array} weights [nPairs] factor of each output
 * @property {Int32Array} exponents [nRows] the unit of each row's integers is 2^exponent
 */

/**
 * Rows and what to compute: expert `pairIds[i]` (local id) of row `pairRows[i]`, for every pair i.
 * @typedef {object} Dispatch
 * @property {4} kind
 * @property {number} request
 * @property {number} layer
 * @property {number} rowFormat WireType.F32 or WireType.KX1
 * @property {number} dModel
 * @property {number} nRows
 * @property {Uint8Array} rows [nRows * row bytes]
 * @property {Uint32Array} pairRows [nPairs]
 * @property {Uint32Array} pairIds [nPairs]
 * @property {boolean} isReplyF16 whether results may be f16
 * @property {boolean} hasMore another dispatch of the same layer follows at once
 * @property {SumOrder | null} sums answer with a SumResult
 */

/**
 * The answer to the Dispatch of the same number: one output row per pair, in the order of the pairs.
 * @typedef {object} Result
 * @property {5} kind
 * @property {number} request
 * @property {number} layer
 * @property {number} nPairs
 * @property {number} dModel
 * @property {Float32Array | Uint16Array} outputs [nPairs * dModel], f32, or f16 as bits
 */

/**
 * The answer to a Dispatch with a SumOrder: one row of integers for each of its rows.
 * @typedef {object} SumResult
 * @property {5} kind
 * @property {number} request
 * @property {number} layer
 * @property {number} nRows
 * @property {number} nPairs of the Dispatch
 * @property {number} dModel
 * @property {Int32Array} sums [nRows * dModel]
 */

/**
 * The answer to a Dispatch that was not computed; with request 0, the reason why the edge ends.
 * @typedef {{kind: 6, request: number, code: number, message: string}} Fault
 */
/** No new dispatches for some milliseconds; 0 ends a pause. @typedef {{kind: 7, milliseconds: number}} Pause */
/** The sender will stop. @typedef {{kind: 8, reason: string}} Goaway */
/** A request for a sign of life. @typedef {{kind: 9, number: number}} Ping */
/** The answer to the Ping of the same number. @typedef {{kind: 10, number: number}} Pong */

/** @typedef {Hello | Welcome | Refuse | Dispatch | Result | SumResult | Fault | Pause | Goaway | Ping | Pong} Frame */

/**
 * @param {{role: number, modelFingerprint: string, kernelFingerprint: string, kernel: string,
 *   limits?: Readonly<Limits>, name?: string, token?: string}} said
 * @returns {Hello}
 */
export function hello({ limits = PROTOCOL_LIMITS, name = "", token = "", ...said }) {
    return { kind: Kind.HELLO, ...said, limits, name, token };
}

/**
 * @param {{modelFingerprint: string, kernelFingerprint: string, kernel: string, rowFormat: number, dModel: number,
 *   ranges: readonly ExpertRange[], limits?: Readonly<Limits>, name?: string}} said
 * @returns {Welcome}
 */
export function welcome({ limits = PROTOCOL_LIMITS, name = "", ...said }) {
    return { kind: Kind.WELCOME, ...said, limits, name };
}

/** @param {number} code @param {string} message @returns {Refuse} */
export function refuse(code, message) {
    return { kind: Kind.REFUSE, code, message };
}

/**
 * @param {number} request @param {number} layer @param {number} nPairs @param {number} dModel
 * @param {Float32Array | Uint16Array} outputs [nPairs * dModel]
 * @returns {Result}
 */
export function result(request, layer, nPairs, dModel, outputs) {
    return { kind: Kind.RESULT, request, layer, nPairs, dModel, outputs };
}

/**
 * @param {Dispatch} dispatch the request
 * @param {Int32Array} sums [nRows * dModel]
 * @returns {SumResult}
 */
export function sumResult({ request, layer, nRows, pairIds, dModel }, sums) {
    return { kind: Kind.RESULT, request, layer, nRows, nPairs: pairIds.length, dModel, sums };
}

/** @param {number} request @param {number} code @param {string} message @returns {Fault} */
export function fault(request, code, message) {
    return { kind: Kind.FAULT, request, code, message };
}

/** @param {number} milliseconds @returns {Pause} */
export function pause(milliseconds) {
    return { kind: Kind.PAUSE, milliseconds };
}

/** @param {string} reason @returns {Goaway} */
export function goaway(reason) {
    return { kind: Kind.GOAWAY, reason };
}

/** @param {number} number @returns {Ping} */
export function ping(number) {
    return { kind: Kind.PING, number };
}

/** @param {number} number @returns {Pong} */
export function pong(number) {
    return { kind: Kind.PONG, number };
}

const ENCODER = new TextEncoder();
const CONTROL = /[\p{Control}\p{Surrogate}]/u;
const CONTROLS = new RegExp(CONTROL.source, "gu");

/**
 * Return whether a text holds control characters (U+0000 to U+001F, U+007F to U+009F) or lone surrogates.
 * @param {string} text
 * @returns {boolean}
 */
export function hasControls(text) {
    return CONTROL.test(text);
}

/**
 * Return the message without control characters, cut to MAX_TEXT_BYTES bytes of UTF-8.
 * @param {string} message
 * @returns {string}
 */
export function clipped(message) {
    const data = ENCODER.encode(message.replace(CONTROLS, " "));
    let end = Math.min(data.length, MAX_TEXT_BYTES);
    while (end < data.length && (data[end] & 0xc0) === 0x80) end -= 1; // never within a character
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(data.subarray(0, end));
}
