/**
 * An agent's sessions at the relay. Backbones learn a worker's holdings when an edge opens, so new holdings need new
 * edges. The new ones are opened first and both serve for a moment; then the old ones say goodbye and close, so that no
 * request is left without an answer.
 */

const HANDOVER_S = 20; // for the new edges to open
const OVERLAP_S = 3; // both serve: a backbone tests a new edge before it sends work to it

/** @import { Holdings } from "../serving/holdings.js" */

/**
 * @typedef {object} RelaySession The part of RelayWorker that is used.
 * @property {() => Promise<void>} run runs until `stop`; throws only for a defect
 * @property {(reason: string) => void} stop say goodbye, answer the requests in flight, close
 * @property {(isPaused: boolean) => void} setPaused ask backbones to pause or to resume @property {() => void} dialNow
 * connect now instead of waiting
 * @property {number} nBackbones
 */

/**
 * @typedef {{holdings: Holdings, relayUrl: string, token: string, onJoined: () => void, onLost: (reason: string) =>
 *   void}} SessionOptions
 */

/** One session and its outcome. */
class Session {
    /**
     * @param {(options: SessionOptions) => RelaySession} make
     * @param {Omit<SessionOptions, "onJoined" | "onLost">} options
     * @param {(session: Session, isJoined: boolean, reason: string) => void} onChange
     */
    constructor(make, options, onChange) {
        this.isJoined = false;
        this.hasEnded = false;
        /** @type {() => void} */
        let settle = () => undefined;
        /** Resolves once it has joined, or ended. @type {Promise<void>} */
        this.settled = new Promise((resolve) => {
            settle = resolve;
        });
        this.worker = make({
            ...options,
            onJoined: () => {
                this.isJoined = true;
                settle();
                onChange(this, true, "");
            },
            onLost: (reason) => {
                this.isJoined = false;
                onChange(this, false, reason);
            },
        });
        const end = (/** @type {string} */ reason) => {
            this.isJoined = false;
            this.hasEnded = true;
            settle();
            onChange(this, false, reason);
        };
        this.running = this.worker.run().then(
            () => end("it has ended"),
            (error) => end(String(error)),
        );
    }
}

/** The sessions at one relay. `onChange` is called for the current one. */
export class AgentEdge {
    /**
     * @param {(options: SessionOptions) => RelaySession} makeWorker
     * @param {(isJoined: boolean, reason: string) => void} onChange
     * @param {{handoverS?: number, overlapS?: number}} [pace]
     */
    constructor(makeWorker, onChange, { handoverS = HANDOVER_S, overlapS = OVERLAP_S } = {}) {
        this.makeWorker = makeWorker;
        this.onChange = onChange;
        this.handoverS = handoverS;
        this.overlapS = overlapS;
        /** @type {Session | null} */
        this.current = null;
        /** @type {Map<Session, ReturnType<typeof setTimeout>>} */
        this.overlapping = new Map();
        /** @type {Set<Promise<void>>} */
        this.leaving = new Set();
        /** @type {Session | null} between its start and the end of the handover */
        this.opening = null;
        this.isPaused = false;
        this.isStopped = false;
    }

    /** Whether there is a session, joined or connecting. */
    get isServing() {
        return this.current !== null;
    }

    get nBackbones() {
        return this.current?.worker.nBackbones ?? 0;
    }

    /**
     * Serve these holdings from now on instead of the others. Return false if the relay did not take the new edges and
     * the old ones continue. If neither session is joined, the new one takes over and keeps connecting.
     * @param {Holdings} holdings @param {string} relayUrl @param {string} token @returns {Promise<boolean>}
     */
    async serve(holdings, relayUrl, token) {
        const old = this.current;
        const session = new Session(this.makeWorker, { holdings, relayUrl, token }, (...news) => this.changed(...news));
        session.worker.setPaused(this.isPaused);
        this.opening = session;
        this.current ??= session;
        await this.within(session.settled);
        this.opening = null;
        if (this.isStopped) return false;
        if (old?.isJoined && !session.isJoined) {
            this.letGo(session, "the relay did not take the new edges");
            return false;
        }
        this.current = session.hasEnded ? null : session;
        if (old !== null && old !== session) {
            this.overlapping.set(
                old,
                setTimeout(() => this.endOverlap(old), 1000 * this.overlapS),
            );
        }
        this.onChange(session.isJoined, session.isJoined ? "" : "the relay is away");
        return true;
    }

    /** Ask backbones to pause or to resume. @param {boolean} isPaused */
    setPaused(isPaused) {
        this.isPaused = isPaused;
        for (const session of [this.current, ...this.overlapping.keys()]) session?.worker.setPaused(isPaused);
    }

    /** Connect to the relay now instead of waiting. */
    dialNow() {
        this.current?.worker.dialNow();
    }

    /**
     * Say goodbye, answer the requests in flight and close for good, within the stop deadline.
     * @param {string} reason
     */
    async stop(reason) {
        this.isStopped = true;
        await this.rest(reason);
    }

    /** Do the same as `stop`, but `serve` may be called again. @param {string} reason */
    async rest(reason) {
        for (const session of [...this.overlapping.keys()]) this.endOverlap(session);
        for (const session of new Set([this.current, this.opening])) {
            if (session !== null) this.letGo(session, reason);
        }
        this.current = null;
        await Promise.all(this.leaving);
    }

    /** Wait until no earlier session overlaps or answers any more. */
    async othersGone() {
        while (this.overlapping.size > 0 || this.leaving.size > 0) {
            await Promise.all(this.leaving);
            if (this.overlapping.size > 0) await new Promise((resolve) => setTimeout(resolve, 250));
        }
    }

    /** @param {Promise<void>} settled */
    async within(settled) {
        /** @type {ReturnType<typeof setTimeout> | undefined} */
        let timer;
        const late = new Promise((resolve) => {
            timer = setTimeout(resolve, 1000 * this.handoverS);
        });
        await Promise.race([settled, late]);
        clearTimeout(timer);
    }

    /** @param {Session} session @param {boolean} isJoined @param {string} reason */
    changed(session, isJoined, reason) {
        if (this.current !== session) return;
        if (session.hasEnded) this.current = null; // after a defect the worker must not appear to serve
        this.onChange(isJoined, reason);
    }

    /** @param {Session} session */
    endOverlap(session) {
        clearTimeout(this.overlapping.get(session));
        if (this.overlapping.delete(session)) this.letGo(session, "this worker serves other experts now");
    }

    /** @param {Session} session @param {string} reason */
    letGo(session, reason) {
        session.worker.stop(reason);
        const gone = session.running.then(() => void this.leaving.delete(gone));
        this.leaving.add(gone);
    }
}
