/**
 * A tab's worker, which needs only a budget: it asks `plan.js` for the next action, performs it, and asks again.
 * `session.js` makes one. Its state is one `WorkerState`; its effects go through the market client, the fetcher and the
 * edge, which tests replace. Decisions are made in `plan.js` alone.
 */

import { reconnectDelayS } from "../../edge/reconnect.js";
import { endedByRefusal, MarketAwayError, MarketRefusedError } from "../../errors.js";
import { rangeKey } from "./fetch.js";
import { AgentNode, MarketTalk } from "./market.js";
import { mustFinish, nextAction, waitS } from "./plan.js";
import * as after from "./plan_changes.js";
import { Outcome, workerState } from "./plan_state.js";
import { piecesWithin } from "./state.js";

/** @import { AgentMemory } from "./state.js" */
/** @import { AgentEdge } from "./edge.js" */
/** @import { Fetcher } from "./fetch.js" */
/** @import { Holdings } from "../serving/holdings.js" */
/** @import { MarketClient } from "./market_client.js" */
/** @import { Action } from "./plan.js" */
/** @import { Piece, Ranges, WorkerState } from "./plan_state.js" */
/** @import { HeldSlice } from "../slices/store.js" */

const LEAVE_S = 5; // for the last heartbeat
const RESERVE_S = 5; // until edges that could not be opened are tried again; at random up to twice as long

/**
 * @typedef {{roomBytes: number, invite: string, name: string, facts: () => Record<string, string | number>, pace?:
 *   import("./market.js").Pace}} AgentOptions
 */

/**
 * @typedef {object} Report Receiver of events.
 * @property {(event: string, facts?: any) => void} say
 * @property {(state: Readonly<WorkerState>) => void} state after every change
 * @property {(piece: Readonly<Piece>, doneBytes: number, totalBytes: number) => void} progress
 */

/**
 * @typedef {object} Surroundings The agent's environment. Clocks in seconds; `jitter` is random in [0, 1).
 * @property {MarketClient} market
 * @property {Fetcher} fetcher
 * @property {AgentMemory} memory
 * @property {Report} report
 * @property {(onChange: (isJoined: boolean, reason: string) => void) => AgentEdge} makeEdge
 * @property {(slices: readonly HeldSlice[]) => Holdings} makeHoldings
 * @property {() => number} clock
 * @property {() => number} jitter
 * @property {() => number} wallClock
 */

/** One worker: `run` until `stop`, which lets it leave cleanly. */
export class Agent {
    /** @param {AgentOptions} options @param {Surroundings} world */
    constructor(options, world) {
        const { holding } = world.memory;
        this.options = options;
        this.world = world;
        this.news = new News();
        this.node = new AgentNode(world, options);
        this.downloads = new Downloads(this);
        this.talk = new MarketTalk(this);
        this.edge = world.makeEdge((isJoined, reason) => this.relayChanged(isJoined, reason));
        this.nFailures = 0;
        this.isPaused = false;
        this.isComputing = true;
        /** @type {() => void} */
        this.interrupt = () => undefined;
        const pieces = piecesWithin(holding.pieces, options.roomBytes);
        this.state = this.node.resumed(workerState({ roomBytes: options.roomBytes, model: holding.model, pieces }));
    }

    /** Make `run` withdraw, answer the requests in flight, and return. @param {string} reason */
    stop(reason) {
        this.become(after.replaced(this.state, { stopReason: reason }));
        this.interrupt();
        this.news.tell();
    }

    /**
     * Stop or resume taking work; edges stay open. Backbones are notified at once, the market with the next heartbeat.
     * @param {boolean} isPaused
     */
    setPaused(isPaused) {
        if (isPaused === this.isPaused) return;
        this.isPaused = isPaused;
        this.edge.setPaused(isPaused || !this.isComputing);
        if (isPaused) this.downloads.end();
        this.news.tell();
    }

    /**
     * Pause backbones while the kernel is replaced; the market is not notified.
     * @param {boolean} isComputing
     */
    setComputing(isComputing) {
        this.isComputing = isComputing;
        this.edge.setPaused(this.isPaused || !isComputing);
    }

    /** Retry everything that waits now: the tab was frozen, or the network is back. */
    wake() {
        const now = this.world.clock();
        const { times } = this.state;
        if (times.siteS - now < 60) this.become(after.notBefore(this.state, { siteS: 0, heartbeatS: 0, fetchS: 0 }));
        this.edge.dialNow();
        this.news.tell();
    }

    /** Work until `stop`. Throws AgentEndedError if it cannot continue. */
    async run() {
        try {
            while (!this.state.stopReason) {
                this.downloads.check();
                if (this.isPaused) {
                    await this.rest();
                    continue;
                }
                const now = this.world.clock();
                const action = nextAction(this.state, now);
                if (action !== null) await this.perform(action);
                else await this.news.wait(waitS(this.state, now));
            }
            await this.leave(this.state.stopReason);
        } finally {
            this.downloads.end();
            await this.edge.stop(this.state.stopReason || "the worker cannot go on");
            this.world.fetcher.keepOnly([]);
        }
    }

    /** Handle a pause: one heartbeat that states no ranges; then nothing is due. */
    async rest() {
        const { state } = this;
        const mustTell = state.stated.length > 0 && this.world.clock() >= state.times.siteS;
        if (mustTell) await this.attempt(() => this.talk.beat([], []));
        else await this.news.wait(60);
    }

    /**
     * Run an action; `stop` interrupts it unless it must finish.
     * @param {Action} action
     */
    async perform(action) {
        const acting = this.attempt(() => this.act(action));
        if (mustFinish(action)) return acting;
        const interrupted = /** @type {Promise<void>} */ (
            new Promise((resolve) => {
                this.interrupt = resolve;
            })
        );
        acting.catch(() => undefined); // after an interruption its outcome does not matter
        await Promise.race([acting, interrupted]);
        this.interrupt = () => undefined;
    }

    /** @param {() => Promise<void>} work */
    async attempt(work) {
        try {
            await work();
        } catch (error) {
            if (error instanceof MarketAwayError) this.siteIsAway(error);
            else if (!(error instanceof MarketRefusedError)) throw error;
            else if (error.code === "unknown_model") await this.forgetModel(error.message);
            else throw endedByRefusal(error);
        }
    }

    /** @param {MarketAwayError} error */
    siteIsAway(error) {
        this.nFailures++;
        const delayS = Math.max(error.retryAfterS, reconnectDelayS(this.nFailures, this.world.jitter()));
        this.become(after.notBefore(this.state, { siteS: this.world.clock() + delayS }));
        this.world.report.say("away", { code: error.code, problem: error.message, retryS: delayS });
    }

    /** @param {Action} action */
    async act(action) {
        const { report } = this.world;
        switch (action.action) {
            case "Register":
                this.become(await this.node.register(this.state));
                report.say("registered", { nodeId: this.state.nodeId });
                break;
            case "Rotate":
                this.become(await this.node.rotate(this.state));
                report.say("rotated");
                break;
            case "Serve":
                return this.serve(action.ranges);
            case "Beat":
                await this.talk.beat(action.ranges, action.leases);
                break;
            case "Fetch":
                return this.downloads.start(action.piece);
            case "Volunteer":
                await this.talk.volunteer(action.roomBytes, action.ranges);
                break;
            case "Look":
                await this.talk.look();
                break;
            default:
                return this.talk.move(action);
        }
        this.nFailures = 0;
        report.say("present");
    }

    // Holdings

    /** @param {Ranges} ranges */
    async serve(ranges) {
        const { fetcher, memory, market, report, makeHoldings } = this.world;
        if (ranges.length === 0) {
            await this.edge.rest("this worker holds nothing now");
        } else {
            const holdings = makeHoldings(fetcher.slices(ranges));
            if (!(await this.edge.serve(holdings, memory.holding.relayUrl, market.token))) {
                this.serveLater();
                return;
            }
            report.say("serving", { nExperts: holdings.nExperts, relayUrl: memory.holding.relayUrl });
        }
        this.become(after.served(this.state, ranges));
        void this.edge.othersGone().then(() => fetcher.keepOnly(this.state.pieces.map((piece) => piece.range)));
    }

    serveLater() {
        const { clock, jitter } = this.world;
        this.become(after.notBefore(this.state, { serveS: clock() + RESERVE_S * (1 + jitter()) }));
    }

    /** @param {boolean} isJoined @param {string} reason */
    relayChanged(isJoined, reason) {
        if (!this.edge.isServing && this.state.served.length > 0 && !this.state.stopReason) {
            this.become(after.replaced(this.state, { served: [] })); // a defect: open it again
            this.serveLater();
        }
        const wasJoined = this.state.isJoined;
        this.become(after.relayChanged(this.state, isJoined, this.world.clock()));
        if (isJoined !== wasJoined) this.world.report.say(isJoined ? "joined" : "lost", { problem: reason });
        this.news.tell();
    }

    /** @param {string} why */
    async forgetModel(why) {
        this.downloads.end();
        this.become(after.forgotten(this.state));
        this.world.fetcher.keepOnly([]);
        await this.save();
        this.world.report.say("model_changed", { reason: why });
    }

    /** @param {string} reason */
    async leave(reason) {
        const { nodeId, model } = this.state;
        if (nodeId && model !== null) {
            const beat = { nodeId, model, ranges: [], leases: [], facts: {}, isLeaving: true };
            const late = new Promise((resolve) => setTimeout(resolve, 1000 * LEAVE_S));
            const told = this.world.market.heartbeat(beat).catch(() => undefined); // if it fails, the lease expires soon
            await Promise.race([told, late]);
        }
        await this.edge.stop(reason);
        this.world.report.say("stopped", { reason });
    }

    // Memory

    /** @param {Readonly<WorkerState>} state */
    become(state) {
        this.state = state;
        this.world.report.state(state);
    }

    /** @param {Partial<import("./state.js").Holding>} [changes] */
    async save(changes = {}) {
        await this.world.memory.saveHolding({ model: this.state.model, pieces: this.state.pieces, ...changes });
    }
}

export class Downloads {
    /** @param {Agent} agent */
    constructor(agent) {
        this.agent = agent;
        /** @type {unknown} an unexpected error of a download */
        this.defect = null;
        /** @type {AbortController | null} */
        this.fetching = null;
        /** @type {Promise<void>} the last download, which may still be closing its file */
        this.running = Promise.resolve();
    }

    /** Throw the unexpected error of the last download, if there was one. */
    check() {
        if (this.defect !== null) throw this.defect;
    }

    /** @param {Readonly<Piece>} piece */
    start(piece) {
        const { agent } = this;
        agent.become(after.replaced(agent.state, { isFetching: true }));
        this.fetching = new AbortController();
        const { signal } = this.fetching;
        const work = () => this.fetch(piece, signal);
        this.running = this.running.then(work).catch((error) => {
            if (signal.aborted) return;
            this.defect = error;
            agent.news.tell();
        });
    }

    /** @param {Readonly<Piece>} piece @param {AbortSignal} signal */
    async fetch(piece, signal) {
        const { agent } = this;
        const { fetcher, report, clock, jitter } = agent.world;
        signal.throwIfAborted();
        const others = agent.state.pieces.filter((other) => rangeKey(other.range) !== rangeKey(piece.range));
        const othersBytes = others.reduce((sum, other) => sum + other.nBytes, 0);
        const done = await fetcher.fetch(agent.state.model?.fingerprint ?? "", piece, othersBytes, {
            progress: (there, total) => report.progress(piece, there, total),
            onVerify: () => report.say("verifying", { piece }),
            onLoad: () => report.say("loading", { piece }),
            signal,
        });
        if (signal.aborted) return;
        this.fetching = null;
        agent.become(after.fetched(agent.state, done, clock(), jitter()));
        report.say(done.outcome === Outcome.FETCHED ? "fetched" : "fetch_failed", done);
        await agent.save();
        agent.news.tell();
    }

    end() {
        const { agent } = this;
        this.fetching?.abort();
        if (this.fetching !== null) agent.become(after.replaced(agent.state, { isFetching: false }));
        this.fetching = null;
    }
}

export class News {
    constructor() {
        this.isThere = false;
        /** @type {() => void} */
        this.wake = () => undefined;
    }

    tell() {
        this.isThere = true;
        this.wake();
    }

    /** Wait until `tell` is called, at most this long. @param {number} seconds */
    async wait(seconds) {
        if (!this.isThere) {
            /** @type {ReturnType<typeof setTimeout> | undefined} */
            let timer;
            await /** @type {Promise<void>} */ (
                new Promise((resolve) => {
                    this.wake = resolve;
                    timer = setTimeout(resolve, 1000 * seconds);
                })
            );
            clearTimeout(timer);
            this.wake = () => undefined;
        }
        this.isThere = false;
    }
}
