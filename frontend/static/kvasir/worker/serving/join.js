/**
 * A worker at a relay: one connection, kept open, for all of its backbones. The agent makes one for its holdings, and
 * another for other holdings; the first then says goodbye (agent/edge.js).
 *
 *   const worker = new RelayWorker({ relayUrl, token }, holdings, { onJoined, onLost, onComputed });
 *   const ended = worker.run();      resolves after stop(); reconnects until then
 *   worker.setPaused(true);         backbones, including new ones, send no work until setPaused(false)
 *   worker.dialNow();               connects now instead of waiting
 *   worker.stop(reason);             says goodbye, answers requests in flight (10 s), closes
 */

import { failuresAfter, reconnectDelayS } from "../../edge/reconnect.js";
import { EdgeError } from "../../errors.js";
import { REAL_OUTSIDE, RelaySocket } from "../../relay/socket.js";
import { hello, RefuseCode, Role, refuse } from "../../wire/frames.js";
import { MAX_U32, makeLimits } from "../../wire/header.js";
import { ComputeQueue } from "./compute.js";
import { Connection } from "./connection.js";

/** @typedef {import("./compute.js").Holdings} Holdings */
/** @typedef {import("../../relay/socket.js").Outside} Outside */

const CONNECT_DEADLINE_S = 15;
const STOP_S = 10; // from `stop` until what is in flight is answered
const MIB = 1024 * 1024;
/** The longest pause on the wire, 49 days: until it is ended, or the worker leaves. */
const UNTIL_RESUMED_MS = MAX_U32;

/**
 * @typedef {object} JoinConfig
 * @property {string} relayUrl
 * @property {string} token of this node, with the scope of a worker
 * @property {string} [name] this software, for people
 * @property {number} [maxClients] backbones at a time
 * @property {number} [maxInflightBytes] bytes that one backbone may have in flight
 */

/**
 * Called on events; none of them may throw.
 * @typedef {object} JoinEvents
 * @property {() => void} [onJoined] at the relay
 * @property {(reason: string) => void} [onLost] the relay was lost or not reached; it is tried again
 * @property {(computed: import("./compute.js").Computed) => void} [onComputed]
 * @property {() => void} [onBackbones] a backbone came or went: see `nBackbones`
 */

/**
 * Randomness, clock and sockets; tests replace them.
 * @typedef {object} JoinMeans
 * @property {Outside} [outside]
 * @property {() => number} [jitter] random in [0, 1)
 * @property {import("../../edge/signs_of_life.js").KeepAlive} [keepAlive]
 */

/** Serves holdings through one relay. Implements Registry. */
export class RelayWorker {
    isJoined = false;
    #config;
    #events;
    #outside;
    #jitter;
    #keepAlive;
    #service;
    /** @type {Set<Connection>} */
    #connections = new Set();
    #nBackbones = 0;
    #stopReason = "";
    #stopping = new AbortController();
    #isPaused = false;
    /** Ends the wait for the next attempt. @type {() => void} */
    #wake = () => {};
    /** @type {Set<() => void>} */
    #whenChanged = new Set();

    /**
     * @param {JoinConfig} config
     * @param {Holdings} holdings
     * @param {JoinEvents} [events]
     * @param {JoinMeans} [means]
     */
    constructor(config, holdings, events = {}, means = {}) {
        this.#config = { name: "kvasir-tab", maxClients: 8, maxInflightBytes: 64 * MIB, ...config };
        this.#events = events;
        this.#outside = means.outside ?? REAL_OUTSIDE;
        this.#jitter = means.jitter ?? Math.random;
        this.#keepAlive = means.keepAlive;
        const limits = makeLimits({ maxInflightBytes: this.#config.maxInflightBytes });
        const queue = new ComputeQueue(holdings, { onComputed: events.onComputed });
        this.#service = { holdings, queue, limits, name: this.#config.name };
    }

    /** @returns {number} connected backbones */
    get nBackbones() {
        return [...this.#connections].filter((connection) => connection.isWelcome && !connection.link.isClosing).length;
    }

    /** @returns {boolean} whether answers are due or not sent yet */
    get owes() {
        return [...this.#connections].some((connection) => connection.owes);
    }

    /**
     * Stay joined until `stop`, reconnecting for as long as it takes. Rejects only for a defect.
     * @returns {Promise<void>}
     */
    async run() {
        let nFailures = 0;
        try {
            while (!this.#stopReason) {
                nFailures = failuresAfter(nFailures, await this.#connection());
                await this.#sleep(reconnectDelayS(nFailures, this.#jitter()));
            }
        } finally {
            this.#service.queue.stop();
        }
    }

    /**
     * Make `run` say goodbye, answer the requests in flight, and return.
     * @param {string} reason
     */
    stop(reason) {
        if (this.#stopReason) return;
        this.#stopReason = reason || "the worker stops";
        this.#stopping.abort();
        this.#wake();
    }

    /**
     * Ask backbones to pause or to resume; requests in flight are answered.
     * @param {boolean} isPaused
     */
    setPaused(isPaused) {
        if (isPaused === this.#isPaused) return;
        this.#isPaused = isPaused;
        for (const connection of this.#connections) connection.sayPause(this.pauseMs());
    }

    /** Connect to the relay now instead of waiting. */
    dialNow() {
        this.#wake();
    }

    // Called by connections

    /** @returns {import("../../wire/frames.js").Refuse | null} why no further backbone is accepted */
    refusal() {
        if (this.#stopReason) return refuse(RefuseCode.STOPPING, "this worker is about to stop");
        const [n, most] = [this.nBackbones, this.#config.maxClients];
        return n < most ? null : refuse(RefuseCode.FULL, `${n} backbones are connected, ${most} may be`);
    }

    /** @returns {number} the length of the current pause, or 0 */
    pauseMs() {
        return this.#isPaused ? UNTIL_RESUMED_MS : 0;
    }

    /** @param {Connection} connection */
    connectionChanged(connection) {
        if (connection.link.isClosing) this.#connections.delete(connection);
        if (this.nBackbones !== this.#nBackbones) {
            this.#nBackbones = this.nBackbones;
            this.#events.onBackbones?.();
        }
        for (const tell of [...this.#whenChanged]) tell();
    }

    /** @returns {Promise<number>} seconds that the connection lasted; 0 if none opened */
    async #connection() {
        try {
            const socket = await this.#dial();
            const beganS = this.#outside.nowS();
            await this.#serve(socket);
            return this.#outside.nowS() - beganS;
        } catch (error) {
            if (!(error instanceof EdgeError)) throw error;
            if (!this.#stopReason) this.#lose(error.message);
            return 0;
        }
    }

    /** @returns {Promise<RelaySocket>} */
    async #dial() {
        const { holdings, limits, name } = this.#service;
        const { kernel, modelFingerprint } = holdings;
        const prints = { modelFingerprint, kernelFingerprint: kernel.fingerprint, kernel: kernel.name };
        const socket = await RelaySocket.connect({
            url: this.#config.relayUrl,
            hello: hello({ role: Role.WORKER, ...prints, limits, name, token: this.#config.token }),
            onEdge: (link) => this.#edgeOpened(link),
            deadlineS: CONNECT_DEADLINE_S,
            signal: this.#stopping.signal,
            keepAlive: this.#keepAlive,
            outside: this.#outside,
        });
        this.isJoined = true;
        this.#events.onJoined?.();
        return socket;
    }

    /** Serve until the socket is lost, or until `stop` is complete. @param {RelaySocket} socket */
    async #serve(socket) {
        const reason = await Promise.race([socket.closed, this.#stopped()]);
        if (!this.#stopReason) {
            this.#lose(reason);
            return;
        }
        for (const connection of this.#connections) connection.sayGoodbye(this.#stopReason);
        await this.#untilNothingIsOwed(socket);
        await socket.close(this.#stopReason);
        this.isJoined = false;
    }

    /** @param {string} reason */
    #lose(reason) {
        this.isJoined = false;
        this.#events.onLost?.(reason);
    }

    /** @param {import("../../relay/link.js").RelayLink} link */
    #edgeOpened(link) {
        const connection = new Connection(this.#service, this, link);
        link.owner = connection;
        this.#connections.add(connection);
    }

    /** @returns {Promise<string>} the reason of `stop` */
    #stopped() {
        return new Promise((resolve) => {
            if (this.#stopReason) resolve(this.#stopReason);
            else this.#stopping.signal.addEventListener("abort", () => resolve(this.#stopReason), { once: true });
        });
    }

    /** Wait until all is answered, the socket is lost, or the stop deadline is over. @param {RelaySocket} socket */
    async #untilNothingIsOwed(socket) {
        await new Promise((resolve) => {
            const timer = this.#outside.after(STOP_S, () => done());
            const look = () => {
                if (!this.owes) done();
            };
            const done = () => {
                timer.cancel();
                this.#whenChanged.delete(look);
                resolve(undefined);
            };
            void socket.closed.then(done);
            this.#whenChanged.add(look);
            look();
        });
    }

    /** @param {number} seconds cut short by `stop` and `dialNow` */
    async #sleep(seconds) {
        if (this.#stopReason) return;
        await new Promise((resolve) => {
            const timer = this.#outside.after(seconds, () => resolve(undefined));
            this.#wake = () => {
                timer.cancel();
                resolve(undefined);
            };
        });
        this.#wake = () => {};
    }
}
