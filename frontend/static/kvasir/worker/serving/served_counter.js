/**
 * Counts what this tab has computed: requests and row-experts, in all and over the last seconds.
 * `holdings.js` reports every computation; `tab_worker.js` publishes the figures and keeps the total.
 */

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

    /** @param {number} nBackbones connected now @returns {import("../tab/messages.js").ServedFacts} */
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
