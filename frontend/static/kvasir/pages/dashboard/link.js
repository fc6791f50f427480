// The dashboard's line to /live: reconnects by itself, drops a line that has gone silent, and says how old the data is.
// A hidden page hangs up and comes back when it is seen. It draws nothing.

/** @typedef {import("./types.js").Snapshot} Snapshot */
/** @typedef {import("./types.js").EmptySnapshot} EmptySnapshot */

/** @typedef {"connecting" | "live" | "old" | "full"} LinkPhase */
/** @typedef {{phase: LinkPhase, ageS: number | null}} LinkState  `ageS`: since the last snapshot came. */

export const OLD_S = 5;
const SILENT_S = 12; // then the line is taken for dead, whatever the browser thinks of it
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 30_000;
const LOOK_EVERY_MS = 1000;
const TRY_AGAIN_LATER = 1013;

/**
 * The address of the feed beside a page.
 * @param {Location | URL} page
 * @returns {string}
 */
export function liveUrl(page) {
    return `${page.protocol === "https:" ? "wss" : "ws"}://${page.host}/live`;
}

/**
 * Milliseconds before attempt number `n` (from 0) after a failure; `jitter` from 0 to 1 spreads many pages.
 * @param {number} n
 * @param {number} jitter
 * @returns {number}
 */
export function reconnectMs(n, jitter) {
    return Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.min(n, 16)) * (1 - jitter / 2);
}

/**
 * @param {ArrayBuffer} data  gzipped JSON
 * @returns {Promise<Snapshot | EmptySnapshot>}
 */
export async function unpack(data) {
    const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
}

export class LiveLink {
    /**
     * @param {string} url
     * @param {(snapshot: Snapshot | EmptySnapshot) => void} onSnapshot
     * @param {(state: LinkState) => void} onState
     */
    constructor(url, onSnapshot, onState) {
        this.url = url;
        this.onSnapshot = onSnapshot;
        this.onState = onState;
        /** @type {WebSocket | null} */
        this.socket = null;
        this.failures = 0;
        this.isFull = false;
        /** @type {number | null} */
        this.cameAt = null;
        this.openedAt = 0;
        this.lastAt = 0;
        this.retry = 0;
        this.look = 0;
        this.seen = () => this.#visibility();
    }

    /** Begin. */
    start() {
        document.addEventListener("visibilitychange", this.seen);
        this.look = window.setInterval(() => this.#look(), LOOK_EVERY_MS);
        this.#connect();
    }

    /** End for good. */
    stop() {
        document.removeEventListener("visibilitychange", this.seen);
        clearInterval(this.look);
        this.#hangUp();
    }

    /** @returns {LinkState} */
    get state() {
        const ageS = this.cameAt === null ? null : (performance.now() - this.cameAt) / 1000;
        if (this.isFull) return { phase: "full", ageS };
        if (ageS === null) return { phase: "connecting", ageS };
        return { phase: ageS > OLD_S ? "old" : "live", ageS };
    }

    #connect() {
        clearTimeout(this.retry);
        const socket = new WebSocket(this.url);
        socket.binaryType = "arraybuffer";
        this.socket = socket;
        this.openedAt = performance.now();
        socket.onmessage = (event) => this.#take(socket, event.data);
        socket.onclose = (event) => {
            if (this.socket === socket) this.#lost(event.code);
        };
    }

    /**
     * @param {WebSocket} socket
     * @param {unknown} data
     */
    async #take(socket, data) {
        if (!(data instanceof ArrayBuffer)) return;
        const snapshot = await unpack(data);
        if (this.socket !== socket || snapshot.at < this.lastAt) return; // overtaken by a newer one
        this.lastAt = snapshot.at;
        this.cameAt = performance.now();
        this.failures = 0;
        this.isFull = false;
        this.onSnapshot(snapshot);
        this.onState(this.state);
    }

    /** @param {number} code */
    #lost(code) {
        this.socket = null;
        this.isFull = code === TRY_AGAIN_LATER;
        this.lastAt = 0; // another server's clock may be behind
        const waitMs = this.isFull ? LONGEST_WAIT_MS : reconnectMs(this.failures, Math.random());
        this.failures += 1;
        this.retry = window.setTimeout(() => this.#connect(), waitMs);
        this.onState(this.state);
    }

    #hangUp() {
        clearTimeout(this.retry);
        const socket = this.socket;
        this.socket = null;
        socket?.close();
    }

    #look() {
        this.onState(this.state);
        if (this.socket === null) return;
        const heardAt = Math.max(this.cameAt ?? 0, this.openedAt);
        if (performance.now() - heardAt > SILENT_S * 1000) {
            this.#hangUp();
            this.#lost(0);
        }
    }

    #visibility() {
        if (document.visibilityState === "hidden") {
            this.#hangUp();
        } else if (this.socket === null) {
            this.failures = 0;
            this.#connect();
        }
    }
}
