/**
 * Turns what an agent does into the state that the page shows: ranges, activity, download, problems.
 * `tab_worker.js` makes one for each agent. Pure bookkeeping; it asks nobody and decides nothing.
 */

import { isSameRange } from "../../slicing/expert_ranges.js";

/** @import { Activity, ContributionState, HeldRange, Problem } from "./messages.js" */
/** @import { Piece, WorkerState } from "../agent/plan_state.js" */
/** @import { StatePublisher } from "./state_publisher.js" */

const SPEED_OVER_MS = 3_000;
/** Which event ends which problem. @type {Record<string, string[]>} */
const ENDS = {
    present: ["site_away", "quarantined"],
    joined: ["relay_away"],
    promised: ["nothing_wanted", "no_room", "download_failed", "memory", "kernel"],
    fetched: ["nothing_wanted", "no_room", "download_failed", "memory"],
    serving: ["relay_away"],
};

/** Implements Report. */
export class TabReport {
    /** @param {StatePublisher} publisher @param {() => number} [nowMs] */
    constructor(publisher, nowMs = Date.now) {
        this.publisher = publisher;
        this.nowMs = nowMs;
        /** @type {"" | "verifying" | "loading"} what becomes of a download whose bytes are all there */
        this.step = "";
        /** @type {{key: string, sinceMs: number, sinceBytes: number} | null} */
        this.measured = null;
    }

    /** @param {Readonly<WorkerState>} state */
    state(state) {
        const { pieces, isFetching, isJoined, model } = state;
        const { phase, problem } = this.publisher.state;
        if (!isFetching) this.step = "";
        this.publisher.update({
            activity: phase === "working" ? activityOf(state, this.step, problem) : "none",
            ranges: pieces.map((piece) => heldRange(piece, state)),
            model,
            isJoined,
            ...(isFetching ? {} : { download: null }),
        });
    }

    /** @param {Readonly<Piece>} piece @param {number} doneBytes @param {number} totalBytes */
    progress({ range }, doneBytes, totalBytes) {
        const now = this.nowMs();
        const key = `${range.layer}:${range.start}`;
        if (this.measured?.key !== key) this.measured = { key, sinceMs: now, sinceBytes: doneBytes };
        const { sinceMs, sinceBytes } = this.measured;
        const elapsedS = (now - sinceMs) / 1000;
        const bytesPerS = elapsedS > 0 ? (doneBytes - sinceBytes) / elapsedS : 0;
        if (now - sinceMs > SPEED_OVER_MS) this.measured = { key, sinceMs: now, sinceBytes: doneBytes };
        this.publisher.update({ download: { ...range, doneBytes, totalBytes, bytesPerS } });
    }

    /** @param {string} event @param {any} [facts] */
    say(event, facts = {}) {
        const { problem } = this.publisher.state;
        const ended = problem !== null && (ENDS[event] ?? []).includes(problem.code);
        const isIdle = event !== "waiting" || this.publisher.state.ranges.length === 0;
        const found = isIdle ? problemOf(event, facts, this.nowMs()) : null;
        if (found !== null || ended) this.publisher.update({ problem: found });
        if (event === "verifying" || event === "loading") {
            this.step = event;
            this.publisher.update({ activity: this.publisher.state.isJoined ? "serving" : event });
        }
        if (event === "serving") this.publisher.update({ relayUrl: facts.relayUrl });
    }
}

/**
 * @param {Readonly<WorkerState>} state
 * @param {"" | "verifying" | "loading"} step
 * @param {Problem | null} problem
 * @returns {Activity}
 */
function activityOf(state, step, problem) {
    if (!state.nodeId) return problem?.code === "site_away" ? "waiting" : "registering";
    if (state.served.length > 0) return state.isJoined ? "serving" : "dialling";
    if (state.isFetching) return step || "downloading";
    return problem === null || state.pieces.length > 0 ? "asking" : "waiting";
}

/** @param {Readonly<Piece>} piece @param {Readonly<WorkerState>} state @returns {HeldRange} */
function heldRange({ range, nBytes, isFetched }, state) {
    const isServed = state.served.some((item) => isSameRange(item, range));
    return { ...range, nBytes, step: isServed ? "served" : isFetched ? "fetched" : "promised" };
}

/** @param {string} event @param {any} facts @param {number} nowMs @returns {Problem | null} */
function problemOf(event, { code, outcome, problem, reason, retryS }, nowMs) {
    /** @param {string} name @param {string} detail @param {number} [retryAtMs] */
    const made = (name, detail, retryAtMs = 0) => ({ code: name, detail, retryAtMs });
    switch (event) {
        case "away":
            return made(code === "quarantined" ? code : "site_away", problem, nowMs + 1000 * retryS);
        case "lost":
            return made("relay_away", problem, nowMs);
        case "waiting":
            return made("nothing_wanted", reason, nowMs + 1000 * retryS);
        case "fetch_failed":
            return made(outcome === "no room" ? "no_room" : "download_failed", problem);
        case "model_changed":
            return made("model_changed", reason);
        default:
            return null;
    }
}

const WINDOW_MS = 10_000;
const BUCKET_MS = 1_000;

export class ServedCounter {
    /** @param {number} totalBefore row-experts of earlier sessions @param {() => number} [nowMs] */
    constructor(totalBefore, nowMs = Date.now) {
        this.nowMs = nowMs;
        this.totalBefore = totalBefore;
        this.nRequests = 0;
        this.nRowExperts = 0;
        this.lastAtMs = 0;
        /** @type {{bucket: number, n: number}[]} */
        this.recent = [];
    }

    /** @param {number} nRequests @param {number} nRowExperts */
    add(nRequests, nRowExperts) {
        this.lastAtMs = this.nowMs();
        this.nRequests += nRequests;
        this.nRowExperts += nRowExperts;
        const bucket = Math.floor(this.lastAtMs / BUCKET_MS);
        const last = this.recent.at(-1);
        if (last?.bucket === bucket) last.n += nRowExperts;
        else this.recent.push({ bucket, n: nRowExperts });
    }

    /** @param {number} nBackbones connected now @returns {import("./messages.js").ServedFacts} */
    facts(nBackbones) {
        const oldest = Math.floor((this.nowMs() - WINDOW_MS) / BUCKET_MS);
        this.recent = this.recent.filter((item) => item.bucket > oldest);
        const nRecent = this.recent.reduce((sum, item) => sum + item.n, 0);
        return {
            nRequests: this.nRequests,
            nRowExperts: this.nRowExperts,
            rowExpertsPerS: nRecent / (WINDOW_MS / 1000),
            totalRowExperts: this.totalBefore + this.nRowExperts,
            lastAtMs: this.lastAtMs,
            nBackbones,
        };
    }
}
