/**
 * One relayed edge as its owner sees it: frames in, frames out. Twin of kvasir/relay/link.py.
 * relay/socket.js makes one for each edge; worker connections own them. Its bytes share the socket's stream, so it
 * cannot hold up the other side by itself: the relay's credit bounds what an edge may have under way.
 */

import { EdgeError, messageOf, WireError } from "../errors.js";
import { decode, encode } from "../wire/codec.js";
import { FaultCode, fault } from "../wire/frames.js";
import { Kind, PROTOCOL_LIMITS } from "../wire/header.js";
import { clipped } from "../wire/texts.js";
import { RECORD_BYTES } from "./records.js";

/** @typedef {import("../wire/frames.js").Frame} Frame */
/** @typedef {import("../wire/header.js").Limits} Limits */

/**
 * Who a link tells what happens. `linkClosed` is called once, never from within a call of the owner's.
 * @typedef {object} LinkOwner
 * @property {(frame: Frame) => void} frameReceived
 * @property {(error: WireError) => void} bytesRefused
 * @property {() => void} bytesWentOut
 * @property {(reason: string) => void} linkClosed
 */

/**
 * The socket that carries a link's records.
 * @typedef {object} Carrier
 * @property {(link: RelayLink | null, buffers: readonly Uint8Array[], nBytes: number) => void} post
 * @property {(link: RelayLink) => void} forget what still comes for it is dropped
 */

/** Frames of one edge. `owner` is set by whoever the socket announces the edge to. */
export class RelayLink {
    /** @type {LinkOwner | null} */
    owner = null;
    queuedBytes = 0;
    #carrier;
    #closeReason = "";
    #hasRefused = false; // that ends the edge already

    /** @param {number} number @param {Carrier} carrier */
    constructor(number, carrier) {
        this.number = number;
        this.#carrier = carrier;
    }

    /** @returns {boolean} whether the edge is closed */
    get isClosing() {
        return this.#closeReason !== "";
    }

    /**
     * Queue a frame; its arrays must not change until it is sent.
     * @param {Frame} frame
     * @param {Readonly<Limits>} limits what the other side accepts
     * @throws {EdgeError} when the edge is closed
     * @throws {WireError} when the frame is over the limits
     */
    send(frame, limits) {
        if (this.#closeReason) throw new EdgeError(`edge is closed: ${this.#closeReason}`);
        this.#post(frame, limits);
    }

    /**
     * Tell the other side why, unless it has been told, and close.
     * @param {string} reason
     */
    close(reason) {
        if (this.#closeReason) return;
        if (!this.#hasRefused) this.#post(fault(0, FaultCode.PROTOCOL, clipped(reason)), PROTOCOL_LIMITS);
        this.#close(reason);
    }

    // What the socket calls

    /**
     * Hand one frame's bytes to the owner.
     * @param {Uint8Array} data
     */
    take(data) {
        if (this.owner === null || this.#closeReason) return;
        let frame;
        try {
            frame = decode(data);
        } catch (error) {
            this.owner.bytesRefused(error instanceof WireError ? error : new WireError(messageOf(error)));
            return;
        }
        if (frame.kind === Kind.FAULT && frame.request === 0) {
            this.#close(`the edge ended (${faultName(frame.code)}): ${frame.message}`);
        } else {
            this.owner.frameReceived(frame);
        }
    }

    /**
     * Count bytes that have left.
     * @param {number} nBytes
     */
    sent(nBytes) {
        this.queuedBytes -= nBytes;
        this.owner?.bytesWentOut();
    }

    /**
     * The socket is gone, and the edge with it.
     * @param {string} reason
     */
    lost(reason) {
        this.#close(reason);
    }

    /** @param {Frame} frame @param {Readonly<Limits>} limits */
    #post(frame, limits) {
        const buffers = encode(frame, limits);
        const nBytes = buffers.reduce((sum, buffer) => sum + buffer.length, RECORD_BYTES);
        this.queuedBytes += nBytes;
        if (frame.kind === Kind.REFUSE) this.#hasRefused = true;
        this.#carrier.post(this, buffers, nBytes);
    }

    /** @param {string} reason */
    #close(reason) {
        if (this.#closeReason) return;
        this.#closeReason = reason || "closed";
        this.#carrier.forget(this);
        // not at once: the owner may be in the middle of something
        queueMicrotask(() => this.owner?.linkClosed(this.#closeReason));
    }
}

/** @param {number} code @returns {string} */
function faultName(code) {
    return Object.entries(FaultCode).find(([, number]) => number === code)?.[0] ?? `code ${code}`;
}
