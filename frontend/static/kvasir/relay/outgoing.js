/**
 * What waits to leave through a relay's socket: records of all edges in their order, bundled. relay/socket.js has one.
 * All that is said in one moment leaves in one message; while the browser's own buffer is full it waits, so that a slow
 * line holds answers here, where connections count them.
 */

import { join } from "../wire/codec.js";
import { MAX_BUNDLE_BYTES, RECORD_BYTES, RELAY_EDGE, recordHead } from "./records.js";

/**
 * One frame of an edge, or of the relay's own when there is no link. `nBytes`: with the record's head.
 * @typedef {{link: import("./link.js").RelayLink | null, buffers: readonly Uint8Array[], nBytes: number}} Posted
 */

const DRAIN_LOOK_S = 0.005; // while the browser's own buffer is full

/** Posted frames in, messages out. `socket` is set when there is one. */
export class RelayOutgoing {
    /** @type {import("../wire/outside.js").SocketLike | null} */
    socket = null;
    #outside;
    /** @type {Posted[]} */
    #posted = [];
    #isFlushing = false;
    #hasEnded = false;
    /** @type {Set<() => void>} who waits until all has left */
    #whenIdle = new Set();

    /** @param {import("../wire/outside.js").Outside} outside */
    constructor(outside) {
        this.#outside = outside;
    }

    /** @param {Posted} posted its arrays must not change until they have left */
    post(posted) {
        if (this.#hasEnded) return;
        this.#posted.push(posted);
        if (!this.#isFlushing) {
            this.#isFlushing = true;
            queueMicrotask(() => this.#flush());
        }
    }

    /** @returns {Promise<void>} until all has left, or nothing leaves any more */
    idle() {
        return new Promise((resolve) => {
            this.#whenIdle.add(resolve);
            this.#flush();
        });
    }

    /** Nothing leaves any more. */
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
