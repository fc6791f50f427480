/**
 * Payloads of the frames without a tensor: handshake, refusals, faults and notices. codec.js calls it. A payload that
 * is too short, too long or has invalid text is a WireError.
 */

import { WireError } from "../errors.js";
import { expertRange } from "../slicing/expert_ranges.js";
import { FaultCode, hasControls, MAX_TEXT_BYTES, RefuseCode, Role } from "./frames.js";
import { isWithin, Kind, kindName, MAX_D_MODEL, makeLimits, WireType } from "./header.js";

/** @typedef {import("./frames.js").Frame} Frame */
/** @typedef {import("./header.js").Header} Header */
/** @typedef {import("./header.js").Limits} Limits */
/** @typedef {import("../slicing/expert_ranges.js").ExpertRange} ExpertRange */

/** @param {PayloadReader} reader @returns {Frame} */
function unpackHello(reader) {
    const role = reader.u8();
    if (role !== Role.BACKBONE && role !== Role.WORKER) {
        throw new WireError(`role byte ${role} is unknown; 66 (B) and 87 (W) exist`);
    }
    const [modelFingerprint, kernelFingerprint] = [reader.fingerprint(), reader.fingerprint()];
    const limits = reader.limits();
    const [kernel, name, token] = [reader.text(), reader.text(), reader.text()];
    return { kind: Kind.HELLO, role, modelFingerprint, kernelFingerprint, kernel, limits, name, token };
}

/** @param {PayloadReader} reader @returns {Frame} */
function unpackWelcome(reader) {
    const [modelFingerprint, kernelFingerprint] = [reader.fingerprint(), reader.fingerprint()];
    const limits = reader.limits();
    const [rowFormat, dModel, nRanges] = [reader.u8(), reader.u32(), reader.u32()];
    if (rowFormat !== WireType.F32 && rowFormat !== WireType.KX1) {
        throw new WireError(`row format ${rowFormat} is unknown; 1 and 2 exist`);
    }
    if (!(dModel >= 1 && dModel <= MAX_D_MODEL)) {
        throw new WireError(`d_model is ${dModel}, 1 to ${MAX_D_MODEL} is allowed`);
    }
    const [kernel, name] = [reader.text(), reader.text()];
    const ranges = reader.ranges(nRanges);
    return { kind: Kind.WELCOME, modelFingerprint, kernelFingerprint, kernel, rowFormat, dModel, ranges, limits, name };
}

/**
 * Return the frame of any kind but Dispatch and Result.
 * @param {Header} header
 * @param {Uint8Array} payload
 * @returns {Frame}
 * @throws {WireError}
 */
export function unpackPayload(header, payload) {
    const reader = new PayloadReader(header.kind, payload);
    const frame = unpack(header, reader);
    reader.end();
    return frame;
}

/** @param {Header} header @param {PayloadReader} reader @returns {Frame} */
function unpack({ kind, request }, reader) {
    switch (kind) {
        case Kind.HELLO:
            return unpackHello(reader);
        case Kind.WELCOME:
            return unpackWelcome(reader);
        case Kind.REFUSE:
            return { kind: Kind.REFUSE, code: reader.code(RefuseCode), message: reader.text() };
        case Kind.FAULT:
            return { kind: Kind.FAULT, request, code: reader.code(FaultCode), message: reader.text() };
        case Kind.PAUSE:
            return { kind: Kind.PAUSE, milliseconds: reader.u32() };
        case Kind.GOAWAY:
            return { kind: Kind.GOAWAY, reason: reader.text() };
        case Kind.PING:
            return { kind: Kind.PING, number: request };
        case Kind.PONG:
            return { kind: Kind.PONG, number: request };
        default:
            throw new WireError(`${kindName(kind)} is a tensor frame`);
    }
}

/**
 * Return the request number and payload bytes of any frame but Dispatch and Result.
 * @param {Exclude<Frame, {kind: 4 | 5}>} frame
 * @returns {{request: number, payload: Uint8Array}}
 * @throws {WireError} if a text, number or fingerprint in it cannot be sent
 */
export function packPayload(frame) {
    const writer = new PayloadWriter();
    let request = 0;
    if (frame.kind === Kind.HELLO) packHello(writer, frame);
    else if (frame.kind === Kind.WELCOME) packWelcome(writer, frame);
    else if (frame.kind === Kind.PAUSE) writer.u32(frame.milliseconds);
    else if (frame.kind === Kind.GOAWAY) writer.text(frame.reason);
    else if (frame.kind === Kind.PING || frame.kind === Kind.PONG) request = frame.number;
    else {
        writer.u16(frame.code);
        writer.text(frame.message);
        if (frame.kind === Kind.FAULT) request = frame.request;
    }
    return { request, payload: Uint8Array.from(writer.bytes) };
}

/** @param {PayloadWriter} writer @param {import("./frames.js").Hello} frame */
function packHello(writer, frame) {
    writer.u8(frame.role);
    writer.fingerprint(frame.modelFingerprint);
    writer.fingerprint(frame.kernelFingerprint);
    writer.limits(frame.limits);
    for (const text of [frame.kernel, frame.name, frame.token]) writer.text(text);
}

/** @param {PayloadWriter} writer @param {import("./frames.js").Welcome} frame */
function packWelcome(writer, frame) {
    checkRanges(frame.ranges);
    writer.fingerprint(frame.modelFingerprint);
    writer.fingerprint(frame.kernelFingerprint);
    writer.limits(frame.limits);
    writer.u8(frame.rowFormat);
    writer.u32(frame.dModel);
    writer.u32(frame.ranges.length);
    for (const text of [frame.kernel, frame.name]) writer.text(text);
    for (const { layer, start, stop } of frame.ranges) for (const number of [layer, start, stop]) writer.u32(number);
}

const ENCODER = new TextEncoder();
const RANGE_BYTES = 12;
const FINGERPRINT_BYTES = 32;
const FINGERPRINT = /^[0-9a-f]{64}$/;

/** Writes a payload from front to back. */
export class PayloadWriter {
    /** @type {number[]} */
    bytes = [];

    /** @param {number} value */
    u8(value) {
        this.#number(value, 1);
    }

    /** @param {number} value */
    u16(value) {
        this.#number(value, 2);
    }

    /** @param {number} value */
    u32(value) {
        this.#number(value, 4);
    }

    /** @param {Readonly<Limits>} limits */
    limits({ maxPayloadBytes, maxRows, maxPairs, maxInflightBytes }) {
        for (const value of [maxPayloadBytes, maxRows, maxPairs, maxInflightBytes]) this.u32(value);
    }

    /** @param {string} value */
    fingerprint(value) {
        if (!FINGERPRINT.test(value)) {
            throw new WireError(`fingerprint ${JSON.stringify(value.slice(0, 80))} is not 64 lower-case hex digits`);
        }
        for (let at = 0; at < value.length; at += 2) this.bytes.push(Number.parseInt(value.slice(at, at + 2), 16));
    }

    /** @param {string} value */
    text(value) {
        const data = ENCODER.encode(value);
        checkText(value, data.length);
        this.u16(data.length);
        for (const byte of data) this.bytes.push(byte);
    }

    /** @param {number} value @param {number} width */
    #number(value, width) {
        const most = 2 ** (8 * width) - 1;
        if (!isWithin(value, most))
            throw new WireError(`${value} does not fit into ${width} bytes: 0 to ${most} is allowed`);
        for (let i = 0; i < width; i++) this.bytes.push(Math.floor(value / 2 ** (8 * i)) & 0xff);
    }
}

/** Reads a payload from front to back, never past its end. */
export class PayloadReader {
    #at = 0;
    #name;
    #data;
    #view;

    /** @param {number} kind @param {Uint8Array} payload */
    constructor(kind, payload) {
        this.#name = kindName(kind);
        this.#data = payload;
        this.#view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
    }

    /** @returns {number} */
    u8() {
        return this.#view.getUint8(this.#take(1));
    }

    /** @returns {number} */
    u16() {
        return this.#view.getUint16(this.#take(2), true);
    }

    /** @returns {number} */
    u32() {
        return this.#view.getUint32(this.#take(4), true);
    }

    /** @returns {string} */
    fingerprint() {
        const start = this.#take(FINGERPRINT_BYTES);
        const digest = this.#data.subarray(start, start + FINGERPRINT_BYTES);
        return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
    }

    /** @returns {Readonly<Limits>} */
    limits() {
        const [maxPayloadBytes, maxRows, maxPairs, maxInflightBytes] = [this.u32(), this.u32(), this.u32(), this.u32()];
        return makeLimits({ maxPayloadBytes, maxRows, maxPairs, maxInflightBytes });
    }

    /** @returns {string} */
    text() {
        const nBytes = this.u16();
        if (nBytes > MAX_TEXT_BYTES) {
            throw new WireError(`${this.#name} has a text of ${nBytes} bytes, at most ${MAX_TEXT_BYTES} are allowed`);
        }
        const start = this.#take(nBytes);
        let value;
        try {
            // a byte order mark is kept, otherwise two different texts would read the same
            const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
            value = decoder.decode(this.#data.subarray(start, start + nBytes));
        } catch {
            throw new WireError(`${this.#name} has a text that is not UTF-8`);
        }
        checkText(value, nBytes);
        return value;
    }

    /** @param {Readonly<Record<string, number>>} codes @returns {number} */
    code(codes) {
        const number = this.u16();
        if (!Object.values(codes).includes(number)) throw new WireError(`${this.#name} has unknown code ${number}`);
        return number;
    }

    /** @param {number} count @returns {readonly ExpertRange[]} */
    ranges(count) {
        const start = this.#take(count * RANGE_BYTES);
        const ranges = [];
        for (let at = start; at < this.#at; at += RANGE_BYTES) {
            const [layer, first, stop] = [0, 4, 8].map((offset) => this.#view.getUint32(at + offset, true));
            if (stop <= first) throw new WireError(`${this.#name}: expert range ${layer}:${first}-${stop} is empty`);
            ranges.push(expertRange(layer, first, stop));
        }
        checkRanges(ranges);
        return ranges;
    }

    end() {
        const nLeft = this.#data.length - this.#at;
        if (nLeft) throw new WireError(`${this.#name} payload has ${nLeft} bytes too many`);
    }

    /** @param {number} nBytes @returns {number} where they start */
    #take(nBytes) {
        const start = this.#at;
        if (start + nBytes > this.#data.length) {
            const needed = start + nBytes;
            throw new WireError(`${this.#name} payload ends at byte ${this.#data.length}, byte ${needed} is needed`);
        }
        this.#at += nBytes;
        return start;
    }
}

/** @param {string} value @param {number} nBytes */
function checkText(value, nBytes) {
    if (nBytes > MAX_TEXT_BYTES) throw new WireError(`text of ${nBytes} bytes, at most ${MAX_TEXT_BYTES} are allowed`);
    if (hasControls(value)) throw new WireError(`text ${JSON.stringify(value.slice(0, 40))} has control characters`);
}

/**
 * @param {readonly ExpertRange[]} ranges
 * @throws {WireError} unless they ascend and do not overlap
 */
export function checkRanges(ranges) {
    for (let i = 1; i < ranges.length; i++) {
        const [before, after] = [ranges[i - 1], ranges[i]];
        const isAscending = after.layer > before.layer || (after.layer === before.layer && after.start >= before.stop);
        if (!isAscending) {
            throw new WireError(`expert ranges ${JSON.stringify(before)} and ${JSON.stringify(after)} do not ascend`);
        }
    }
}
