/**
 * The relay's layer over the wire: numbered records in messages, and the message that opens a socket. A message is one
 * or more records (edge u32, byte count u32, then one frame), little-endian. It does no I/O and never looks into a
 * frame.
 */

import { WireError } from "../errors.js";
import { encode, join } from "../wire/codec.js";
import { HEADER_BYTES, MAX_PAYLOAD_BYTES } from "../wire/header.js";

export const RECORD_BYTES = 8;
/** The edge number of frames between a socket's owner and the relay itself. */
export const RELAY_EDGE = 0;
export const MAX_FRAME_BYTES = HEADER_BYTES + MAX_PAYLOAD_BYTES;
/** Senders put no more records into a message that has this many bytes. */
export const MAX_BUNDLE_BYTES = 1024 * 1024;

/**
 * Return the head of a record.
 * @param {number} edge
 * @param {number} nBytes of the frame
 * @returns {Uint8Array}
 */
export function recordHead(edge, nBytes) {
    const head = new Uint8Array(RECORD_BYTES);
    const view = new DataView(head.buffer);
    view.setUint32(0, edge, true);
    view.setUint32(4, nBytes, true);
    return head;
}

/**
 * Yield each record's edge and frame in a message, in order. Frames are views.
 * @param {Uint8Array} message
 * @returns {Generator<{edge: number, data: Uint8Array}, void, undefined>}
 * @throws {WireError} if the bytes are not whole records, after yielding those before the fault
 */
export function* records(message) {
    if (message.length === 0) throw new WireError("an empty message holds no record");
    const view = new DataView(message.buffer, message.byteOffset, message.byteLength);
    for (let at = 0; at < message.length; ) {
        const start = at + RECORD_BYTES;
        if (start > message.length) {
            const end = message.length;
            throw new WireError(`message ends at byte ${end}, within the head of a record that starts at byte ${at}`);
        }
        const [edge, nBytes] = [view.getUint32(at, true), view.getUint32(at + 4, true)];
        at = start + nBytes;
        if (nBytes > MAX_FRAME_BYTES) {
            throw new WireError(`record of ${nBytes} bytes, at most ${MAX_FRAME_BYTES} are allowed`);
        }
        if (at > message.length) {
            throw new WireError(`message ends at byte ${message.length}, its record for edge ${edge} at byte ${at}`);
        }
        yield { edge, data: message.subarray(start, at) };
    }
}

/**
 * Return the first message of a socket: the role byte, then the hello's frame.
 * @param {import("../wire/frames.js").Hello} hello
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function openingMessage(hello) {
    return join([Uint8Array.of(hello.role), ...encode(hello)]);
}
