/**
 * The one download that goes on while an agent does everything else. The fetching part of kvasir/worker/agent/agent.py.
 * `agent.js` starts and ends it; what a failure means is `agent/fetch.js`'s.
 */

import { rangeKey } from "./fetch.js";
import { Outcome } from "./fetch_outcome.js";
import * as after from "./plan_changes.js";

/** @import { Agent } from "./agent.js" */
/** @import { Piece } from "./plan_state.js" */

export class Downloads {
    /** @param {Agent} agent */
    constructor(agent) {
        this.agent = agent;
        /** @type {unknown} what went wrong and should not have */
        this.defect = null;
        /** @type {AbortController | null} */
        this.fetching = null;
        /** @type {Promise<void>} the last download, which may still be letting go of its file */
        this.running = Promise.resolve();
    }

    /** Throws a defect of the last download: it must not look like one that goes on. */
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
