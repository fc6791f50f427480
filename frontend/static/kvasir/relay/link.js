/**
 * One relayed edge: frames in, frames out; and the queue in which all edges of a socket wait to be sent. socket.js
 * makes a link for each edge; worker connections own them. Edges share the socket's stream, so one cannot hold up its
 * sender by itself: the relay's credit bounds the bytes that an edge may have in flight.
 */

import { EdgeError, messageOf, WireError } from "../errors.js";
import { decode, encode, join } from "../wire/codec.js";
import { clipped, FaultCode, fault } from "../wire/frames.js";
import { Kind, PROTOCOL_LIMITS } from "../wire/header.js";
import { MAX_BUNDLE_BYTES, RECORD_BYTES, RELAY_EDGE, recordHead } from "./records.js";

/** @typedef {import("../wire/frames.js").Frame} Frame */
/** @typedef {import("../wire/header.js").Limits} Limits */

/**
 * The owner of a link. `linkClosed` is called once, never during a call by the owner.
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

/** One edge. The receiver of `onEdge` sets `owner`. */
export class RelayLink {
    /** @type {LinkOwner | null} */
    owner = null;
    queuedBytes = 0;
    #carrier;
    #closeReason = "";
    #hasRefused = false; // a refusal ends the edge

    /** @param {number} number @param {Carrier} carrier */
    constructor(number, carrier) {
        this.number = number;
        this.#carrier = carrier;
    }

    /** @returns {boolean} */
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
     * Send the reason, unless one was sent, and close.
     * @param {string} reason
     */
    close(reason) {
        if (this.#closeReason) return;
        if (!this.#hasRefused) this.#post(fault(0, FaultCode.PROTOCOL, clipped(reason)), PROTOCOL_LIMITS);
        this.#close(reason);
    }

    // Called by the socket

    /**
     * Decode one frame's bytes and pass it to the owner.
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
     * Count bytes that were sent.
     * @param {number} nBytes
     */
    sent(nBytes) {
        this.queuedBytes -= nBytes;
        this.owner?.bytesWentOut();
    }

    /**
     * The socket is lost, and the edge with it.
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
        // later: the owner may be in the middle of a call
        queueMicrotask(() => this.owner?.linkClosed(this.#closeReason));
    }
}

/** @param {number} code @returns {string} */
function faultName(code) {
    return Object.entries(FaultCode).find(([, number]) => number === code)?.[0] ?? `code ${code}`;
}

/**
 * One frame of an edge, or of the relay's own when there is no link. `nBytes`: with the record's head.
 * @typedef {{link: import("./link.js").RelayLink | null, buffers: readonly Uint8Array[], nBytes: number}} Posted
 */

const DRAIN_LOOK_S = 0.005; // while the browser's own buffer is full

/**
 * Bundles the records of all edges, in their order, into messages. All that is posted in one turn leaves in one
 * message. While the browser's own buffer is full, records wait here, where connections count them. `socket` is set
 * once it is open.
 */
export class RelayOutgoing {
    /** @type {import("./socket.js").SocketLike | null} */
    socket = null;
    #outside;
    /** @type {Posted[]} */
    #posted = [];
    #isFlushing = false;
    #hasEnded = false;
    /** @type {Set<() => void>} called when everything is sent */
    #whenIdle = new Set();

    /** @param {import("./socket.js").Outside} outside */
    constructor(outside) {
        this.#outside = outside;
    }

    /** @param {Posted} posted its arrays must not change until they are sent */
    post(posted) {
        if (this.#hasEnded) return;
        this.#posted.push(posted);
        if (!this.#isFlushing) {
            this.#isFlushing = true;
            queueMicrotask(() => this.#flush());
        }
    }

    /** @returns {Promise<void>} until everything is sent, or `end` is called */
    idle() {
        return new Promise((resolve) => {
            this.#whenIdle.add(resolve);
            this.#flush();
        });
    }

    /** Send nothing more. */
    end() {
        this.#hasEnded = true;
        this.#posted = [];
        this.#tellIdle();
    }

    #flush() {
        const { socket } = this;
        if (socket === null || this.#hasEnded) return;
        this.#isFlushing = true;
        while (this.#posted.length > 0 && socket.bufferedAmount < MAX_BUNDLE_BYTES) {
            const bundle = this.#nextBundle();
            socket.send(join(bundle.flatMap(({ link, buffers, nBytes }) => [headOf(link, nBytes), ...buffers])));
            for (const { link, nBytes } of bundle) link?.sent(nBytes);
        }
        const isIdle = this.#posted.length === 0 && socket.bufferedAmount === 0;
        if (isIdle) this.#tellIdle();
        this.#isFlushing = this.#posted.length > 0 || this.#whenIdle.size > 0;
        if (this.#isFlushing) this.#outside.after(DRAIN_LOOK_S, () => this.#flush());
    }

    /** @returns {Posted[]} at least one */
    #nextBundle() {
        let [n, total] = [1, this.#posted[0].nBytes];
        while (n < this.#posted.length && total + this.#posted[n].nBytes <= MAX_BUNDLE_BYTES) {
            total += this.#posted[n].nBytes;
            n += 1;
        }
        return this.#posted.splice(0, n);
    }

    #tellIdle() {
        for (const tell of this.#whenIdle) tell();
        this.#whenIdle.clear();
    }
}

/** @param {Posted["link"]} link @param {number} nBytes @returns {Uint8Array} */
function headOf(link, nBytes) {
    return recordHead(link?.number ?? RELAY_EDGE, nBytes - RECORD_BYTES);
}
