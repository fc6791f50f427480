/**
 * A worker's WebSocket to a relay: opening, records in and out, signs of life. serving/join.js holds one, which many
 * edges share, and reconnects. Browsers cannot send a WebSocket ping, so it sends a PING frame of the wire instead.
 */

import { LOOK_EVERY_S, LookResult, SignsOfLife } from "../edge/signs_of_life.js";
import { EdgeError, EdgeTimeout, HandshakeRefused, messageOf, WireError } from "../errors.js";
import { decode, encode } from "../wire/codec.js";
import { ping, pong, RefuseCode } from "../wire/frames.js";
import { HEADER_BYTES, Kind, PROTOCOL_LIMITS } from "../wire/header.js";
import { RelayLink, RelayOutgoing } from "./link.js";
import { openingMessage, RECORD_BYTES, RELAY_EDGE, records } from "./records.js";

/** @typedef {import("../wire/frames.js").Frame} Frame */
/** @typedef {import("../wire/frames.js").Welcome} Welcome */

const CLOSE_DEADLINE_S = 2;
const KIND_AT = 5; // offset of the kind in a frame's header
const CLOSE_REASON_CHARACTERS = 40; // a close reason has at most 123 bytes of UTF-8
/** A look at the clock that is this late means that the tab was frozen, not that the relay is gone. */
const FROZEN_S = 3 * LOOK_EVERY_S;

/**
 * @typedef {object} SocketOptions
 * @property {string} url ws: or wss:
 * @property {import("../wire/frames.js").Hello} hello with the token
 * @property {(link: RelayLink) => void} onEdge called for every edge that opens; it sets the link's owner
 * @property {number} deadlineS for the whole opening
 * @property {AbortSignal} [signal] aborts the opening
 * @property {import("../edge/signs_of_life.js").KeepAlive} [keepAlive]
 * @property {Outside} [outside]
 */

/** An open socket. `closed` resolves with the reason when it ends; edges that are open then are lost. */
export class RelaySocket {
    /** @type {Promise<string>} */
    closed;
    /** The reason why the relay is about to stop, or "". */
    goaway = "";
    #options;
    #outside;
    /** @type {SocketLike | null} */
    #socket = null;
    /** @type {Map<number, RelayLink>} */
    #links = new Map();
    #outgoing;
    /** @type {Welcome | null} */
    #welcome = null;
    /** @type {((error: Error | null) => void) | null} settles the opening */
    #opened = null;
    /** @type {(reason: string) => void} */
    #resolveClosed = () => {};
    #endReason = "";
    #parting = ""; // why this side closes
    #signs;
    #pingNumber = 0;

    /** @param {SocketOptions} options use `connect` */
    constructor(options) {
        this.#options = options;
        this.#outside = options.outside ?? REAL_OUTSIDE;
        this.#outgoing = new RelayOutgoing(this.#outside);
        this.#signs = new SignsOfLife(this.#outside.nowS(), options.keepAlive);
        this.closed = new Promise((resolve) => (this.#resolveClosed = resolve));
    }

    /**
     * Open a socket and wait for the welcome, within the deadline.
     * @param {SocketOptions} options
     * @returns {Promise<RelaySocket>}
     * @throws {HandshakeRefused} with the relay's reason
     * @throws {EdgeTimeout}
     * @throws {EdgeError} if there is no answer, or not one of this protocol
     */
    static async connect(options) {
        const relay = new RelaySocket(options);
        const { url, deadlineS, signal } = options;
        const timer = relay.#outside.after(deadlineS, () => {
            relay.#fail(new EdgeTimeout(`relay ${url}: no answer to the hello within ${deadlineS} s`));
        });
        const giveUp = () => relay.#fail(new EdgeError(`relay ${url}: the handshake was aborted`));
        signal?.addEventListener("abort", giveUp);
        try {
            await relay.#open();
        } finally {
            timer.cancel();
            signal?.removeEventListener("abort", giveUp);
        }
        relay.#stayAlive(relay.#outside.nowS());
        return relay;
    }

    /** @returns {Welcome} the relay's answer; its limits include the credit of an edge */
    get welcome() {
        if (this.#welcome === null) throw new EdgeError(`relay ${this.#options.url} has not answered yet`);
        return this.#welcome;
    }

    /**
     * Send what is queued, end every edge and close, within two seconds.
     * @param {string} reason
     * @returns {Promise<void>}
     */
    async close(reason) {
        this.#parting = reason;
        if (!this.#endReason) {
            const timer = this.#outside.after(CLOSE_DEADLINE_S, () => this.#abort(reason));
            await this.#outgoing.idle();
            this.#socket?.close(1000, reason.slice(0, CLOSE_REASON_CHARACTERS));
            await this.closed;
            timer.cancel();
        }
    }

    // Called by links

    /**
     * Queue one frame of an edge, or of the relay's own when there is no link.
     * @param {RelayLink | null} link
     * @param {readonly Uint8Array[]} buffers
     * @param {number} nBytes with the record's head
     */
    post(link, buffers, nBytes) {
        this.#outgoing.post({ link, buffers, nBytes });
    }

    /** @param {RelayLink} link frames that still arrive for it are dropped */
    forget(link) {
        this.#links.delete(link.number);
    }

    /** @returns {Promise<void>} */
    #open() {
        return new Promise((resolve, reject) => {
            this.#opened = (error) => (error === null ? resolve() : reject(error));
            if (this.#options.signal?.aborted) {
                this.#fail(new EdgeError("the handshake was aborted"));
                return;
            }
            try {
                this.#listen(this.#outside.openSocket(checkedUrl(this.#options.url)));
            } catch (error) {
                this.#fail(new EdgeError(`relay ${this.#options.url} cannot be reached: ${messageOf(error)}`));
            }
        });
    }

    /** @param {SocketLike} socket */
    #listen(socket) {
        this.#socket = socket;
        this.#outgoing.socket = socket;
        const opening = openingMessage(this.#options.hello); // throws if the token cannot be sent
        socket.binaryType = "arraybuffer";
        socket.onopen = () => socket.send(opening);
        socket.onmessage = (event) => this.#receive(event.data);
        socket.onclose = ({ code, reason }) => {
            const { url } = this.#options;
            if (this.#opened !== null) {
                this.#fail(new EdgeError(`relay ${url} cannot be reached: socket closed (${code}: ${reason})`));
            } else {
                this.#abort(`relay ${url}: socket closed (${code}: ${reason})`);
            }
        };
    }

    /** @param {unknown} data */
    #receive(data) {
        this.#signs.heardS = this.#outside.nowS();
        try {
            if (!(data instanceof ArrayBuffer)) throw new WireError("a text message; the relay sends only bytes");
            for (const record of records(new Uint8Array(data))) this.#take(record.edge, record.data);
        } catch (error) {
            if (!(error instanceof WireError || error instanceof EdgeError)) console.error(error);
            const { url } = this.#options;
            if (error instanceof HandshakeRefused) this.#fail(error);
            else this.#fail(new EdgeError(`relay ${url} does not speak this protocol: ${messageOf(error)}`));
        }
    }

    /** @param {number} edge @param {Uint8Array} data */
    #take(edge, data) {
        if (edge === RELAY_EDGE) {
            this.#hear(decode(data));
            return;
        }
        let link = this.#links.get(edge);
        if (link === undefined) {
            const isOpening = data.length >= HEADER_BYTES && data[KIND_AT] === Kind.HELLO;
            if (!isOpening) return; // this side has closed the edge
            link = new RelayLink(edge, this);
            this.#links.set(edge, link);
            this.#options.onEdge(link);
        }
        link.take(data);
    }

    /** Handle a frame from the relay itself. @param {Frame} frame */
    #hear(frame) {
        if (frame.kind === Kind.WELCOME) {
            this.#welcome = frame;
            this.#opened?.(null);
            this.#opened = null;
        } else if (frame.kind === Kind.REFUSE) {
            const code = Object.entries(RefuseCode).find(([, number]) => number === frame.code)?.[0];
            throw new HandshakeRefused(frame.code, `relay ${this.#options.url} refused (${code}): ${frame.message}`);
        } else if (frame.kind === Kind.GOAWAY) {
            this.goaway = frame.reason || "the relay stops";
        } else if (frame.kind === Kind.PING) {
            this.#say(pong(frame.number));
        } else if (frame.kind !== Kind.PONG) {
            throw new WireError(`a frame of kind ${frame.kind} is not expected from the relay itself`);
        }
    }

    /** @param {Frame} frame */
    #say(frame) {
        const buffers = encode(frame, PROTOCOL_LIMITS);
        this.post(
            null,
            buffers,
            buffers.reduce((sum, buffer) => sum + buffer.length, RECORD_BYTES),
        );
    }

    /** @param {number} lookedS time of the previous look */
    #stayAlive(lookedS) {
        this.#outside.after(LOOK_EVERY_S, () => {
            if (this.#endReason) return;
            const nowS = this.#outside.nowS();
            const nUnsent = this.#socket?.bufferedAmount ?? 0;
            const action = this.#signs.look(nowS, nUnsent, nowS - lookedS < FROZEN_S);
            if (action === LookResult.PING) this.#say(ping(++this.#pingNumber));
            if (action === LookResult.GIVE_UP) {
                const silentS = this.#signs.silentS(nowS).toFixed(1);
                this.#abort(`relay ${this.#options.url} gave no sign of life for ${silentS} s`);
            } else {
                this.#stayAlive(nowS);
            }
        });
    }

    /** @param {Error} error fails the opening, or ends the socket */
    #fail(error) {
        const opened = this.#opened;
        this.#opened = null;
        this.#abort(error.message);
        opened?.(error);
    }

    /** Close for good; every edge is lost. @param {string} reason */
    #abort(reason) {
        if (this.#endReason) return;
        this.#endReason = this.#parting || reason;
        const socket = this.#socket;
        if (socket !== null) {
            socket.onopen = socket.onmessage = socket.onclose = null;
            socket.close();
        }
        this.#outgoing.end();
        for (const link of [...this.#links.values()]) link.lost(this.#endReason);
        this.#resolveClosed(this.#endReason);
    }
}

/** @param {string} url @returns {string} the same, if it is a WebSocket address without secrets */
function checkedUrl(url) {
    const { protocol, username, password, search, hash } = new URL(url);
    if (protocol !== "ws:" && protocol !== "wss:") throw new EdgeError(`${url} is not a ws: or wss: address`);
    if (username || password || search || hash) throw new EdgeError("a relay address holds no user, query or fragment");
    return url;
}

/**
 * The part of WebSocket that is used.
 * @typedef {object} SocketLike
 * @property {string} binaryType
 * @property {number} bufferedAmount
 * @property {((event: any) => void) | null} onopen
 * @property {((event: {data: unknown}) => void) | null} onmessage
 * @property {((event: {code: number, reason: string}) => void) | null} onclose
 * @property {(data: Uint8Array<ArrayBuffer>) => void} send
 * @property {(code?: number, reason?: string) => void} close
 */

/**
 * @typedef {object} Outside
 * @property {() => number} nowS seconds of a monotonic clock
 * @property {(seconds: number, then: () => void) => {cancel: () => void}} after
 * @property {(url: string) => SocketLike} openSocket
 */

/** @type {Outside} */
export const REAL_OUTSIDE = Object.freeze({
    nowS: () => performance.now() / 1000,
    /** @param {number} seconds @param {() => void} then */
    after: (seconds, then) => {
        const timer = setTimeout(then, 1000 * seconds);
        return { cancel: () => clearTimeout(timer) };
    },
    /** @param {string} url @returns {SocketLike} */
    openSocket: (url) => /** @type {any} */ (new WebSocket(url)), // its handlers have narrower types
});
