/**
 * What a site says is wanted of its model: replicas and targets of runs of experts. Twin of kvasir/worker/agent/demand.py.
 * The market client reads it from GET /api/expert-demand, the plan asks it. Nothing here asks anybody.
 */

import { nExperts, nShared } from "../../slicing/expert_ranges.js";

/** @typedef {import("../../slicing/expert_ranges.js").ExpertRange} ExpertRange */

/**
 * Experts of one layer with the same replicas and the same target.
 * @typedef {{readonly range: ExpertRange, readonly replicas: number, readonly target: number}} DemandRun
 */

/**
 * All runs of one model. Replicas are those of living workers, the one that asks included.
 * @typedef {{readonly fingerprint: string, readonly runs: readonly DemandRun[]}} Demand
 */

/**
 * Replicas beyond the target of the range's scarcest expert; below 0 when one has too few, or is unknown.
 * @param {Demand} demand
 * @param {ExpertRange} range
 * @returns {number}
 */
export function surplus(demand, range) {
    let covered = 0;
    let least = Infinity;
    for (const run of demand.runs) {
        const shared = nShared(run.range, range);
        if (shared > 0) {
            least = Math.min(least, run.replicas - run.target);
            covered += shared;
        }
    }
    return covered === nExperts(range) ? least : -1;
}

/**
 * Whether experts that are not in `held` have fewer replicas than they should.
 * @param {Demand} demand
 * @param {readonly ExpertRange[]} held ranges that neither overlap nor repeat
 * @returns {boolean}
 */
export function hasGapBeside(demand, held) {
    return demand.runs.some((run) => {
        if (run.replicas >= run.target) return false;
        const n = held.reduce((sum, range) => sum + nShared(run.range, range), 0);
        return n < nExperts(run.range);
    });
}
