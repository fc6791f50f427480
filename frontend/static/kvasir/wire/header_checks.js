/**
 * What a header may say: its counts agree with each other and with what the receiver takes. Twin of `Header.check` in
 * kvasir/wire/header.py. wire.js asks before it sends, and before it reads a payload; nothing here looks into one.
 */

import { WireError } from "../errors.js";
import {
    encodedRowBytes,
    FLAG_MORE,
    FLAG_REPLY_F16,
    FLAG_SUMS,
    Kind,
    KX1_VALUES,
    kindName,
    MAX_CONTROL_BYTES,
    MAX_D_MODEL,
    sumsBytes,
    WireType,
    wireTypeName,
} from "./header.js";

/** @typedef {import("./header.js").Header} Header */
/** @typedef {import("./header.js").Limits} Limits */

/** @type {readonly number[]} */
const DISPATCH_TYPES = [WireType.F32, WireType.KX1];
/** @type {readonly number[]} */
const RESULT_TYPES = [WireType.F32, WireType.F16, WireType.SUMS];

/**
 * Throws unless the counts agree with each other and with `limits`. Both ends call this.
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
 * The least and the most payload bytes that the counts of a Dispatch or Result call for.
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
