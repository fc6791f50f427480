/**
 * The worker that needs only a budget, in a tab: it asks `plan.js` what is next, does it, and asks again. Twin of
 * kvasir/worker/agent/agent.py. `tab_worker.js` runs one. All that it knows is one `WorkerState`; what it does to the world
 * goes through the market client, the fetcher and the edge, which tests replace. It decides nothing itself.
 */

import { Downloads } from "./downloads.js";
import { endedByRefusal } from "./errors.js";
import { MarketTalk } from "./market.js";
import { AgentNode } from "./node.js";
import { piecesWithin } from "./state.js";
import { MarketAwayError, MarketRefusedError } from "./market_errors.js";
import { News } from "../tab/news.js";
import { nextAction, waitS } from "./plan.js";
import { mustFinish } from "./plan_actions.js";
import * as after from "./plan_changes.js";
import { workerState } from "./plan_state.js";
import { reconnectDelayS } from "../../edge/reconnect.js";

/** @import { AgentMemory } from "./state.js" */
/** @import { AgentEdge } from "./edge.js" */
/** @import { Fetcher } from "./fetch.js" */
/** @import { Holdings } from "../serving/holdings.js" */
/** @import { MarketClient } from "./market_client.js" */
/** @import { Action } from "./plan_actions.js" */
/** @import { Piece, Ranges, WorkerState } from "./plan_state.js" */
/** @import { HeldSlice } from "../slices/store.js" */

const LEAVE_S = 5; // for the last heartbeat
const RESERVE_S = 5; // until edges that could not be opened are tried again, at random up to twice that

/**
 * @typedef {{roomBytes: number, invite: string, name: string, facts: () => Record<string, string | number>, pace?:
 *   import("./market.js").Pace}} AgentOptions
 */

/**
 * @typedef {object} Report  Who hears what happens.
 * @property {(event: string, facts?: any) => void} say
 * @property {(state: Readonly<WorkerState>) => void} state  after every change
 * @property {(piece: Readonly<Piece>, doneBytes: number, totalBytes: number) => void} progress
 */

/**
 * @typedef {object} Surroundings  Everything outside. Clocks in seconds; `jitter` is random in [0, 1).
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

/** One worker. `run` it; `stop` lets it leave in order. */
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

    /** Have `run` withdraw, answer what is under way, and end. @param {string} reason */
    stop(reason) {
        this.become(after.replaced(this.state, { stopReason: reason }));
        this.interrupt();
        this.news.tell();
    }

    /**
     * Take no more work, or take it again; edges stay open. Backbones hear of it at once, the market soon.
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
     * Backbones send no new work while the kernel is away for a moment; the market hears nothing of it.
     * @param {boolean} isComputing
     */
    setComputing(isComputing) {
        this.isComputing = isComputing;
        this.edge.setPaused(this.isPaused || !isComputing);
    }

    /** The tab was frozen, or the network is back: what waits for a moment is tried now. */
    wake() {
        const now = this.world.clock();
        const { times } = this.state;
        if (times.siteS - now < 60) this.become(after.notBefore(this.state, { siteS: 0, heartbeatS: 0, fetchS: 0 }));
        this.edge.dialNow();
        this.news.tell();
    }

    /** Work until `stop`. Throws AgentEndedError when it cannot go on. */
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

    /** While paused the market is told that nothing is held, once; then nothing is due. */
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
        acting.catch(() => undefined); // whoever interrupts does not care how it ended
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

    // What it holds

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
            const told = this.world.market.heartbeat(beat).catch(() => undefined); // else its lease ends soon
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
