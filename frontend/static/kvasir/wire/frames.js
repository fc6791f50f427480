/**
 * The frames as data: one frozen shape a kind, told apart by `kind`. Twin of kvasir/wire/frames.py.
 * Both ends of an edge build and receive these; wire.js turns them into bytes and back. Nothing here does I/O, and
 * nothing here judges whether a worker can compute what is asked.
 */

import { Kind, PROTOCOL_LIMITS } from "./header.js";

/** @typedef {import("./header.js").Limits} Limits */
/** @typedef {import("../slicing/expert_ranges.js").ExpertRange} ExpertRange */

export const MAX_TEXT_BYTES = 1024;

/** Who speaks: the role byte is the letter's ASCII code. */
export const Role = Object.freeze({ BACKBONE: 66, WORKER: 87 });

/** Which part of a hello disagreed. */
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
 * First frame of the side that asks. Fingerprints are 64 hex digits.
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
 * Weights and exponents: a worker answers with one row of sums for each row (docs/reference/kx1.md, step 7).
 * @typedef {object} SumOrder
 * @property {Float32Array} weights [nPairs] what each output is multiplied by
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
 * @property {boolean} hasMore another one of the same layer follows at once
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
/** Are you there? @typedef {{kind: 9, number: number}} Ping */
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
 * @param {Dispatch} dispatch that it answers
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
