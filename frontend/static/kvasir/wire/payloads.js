/**
 * Payloads of the frames that carry no tensor: handshake, refusals, faults and notices. Twin of
 * kvasir/wire/payloads.py; wire.js calls it. A payload that is short, long or not well-formed text is a WireError.
 */

import { WireError } from "../errors.js";
import { FaultCode, RefuseCode, Role } from "./frames.js";
import { Kind, kindName, MAX_D_MODEL, WireType } from "./header.js";
import { checkRanges, PayloadReader, PayloadWriter } from "./payload_bytes.js";

/** @typedef {import("./frames.js").Frame} Frame */
/** @typedef {import("./header.js").Header} Header */

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
 * The frame of any kind but Dispatch and Result.
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
 * Request number and payload bytes of any frame but Dispatch and Result.
 * @param {Exclude<Frame, {kind: 4 | 5}>} frame
 * @returns {{request: number, payload: Uint8Array}}
 * @throws {WireError} when a text, number or fingerprint in it cannot travel
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
