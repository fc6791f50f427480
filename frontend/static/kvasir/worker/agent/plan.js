/**
 * A worker's decisions: a pure function from its state to the next action, or to none. The golden cases are those of
 * the Python plan. After every event the agent performs nextAction(state, nowS); waitS(state, nowS) is the time until
 * something is due.
 */

import {
    areSameRanges,
    includesRange,
    isSameRange,
    mergeRanges,
    nExperts,
    nShared,
} from "../../slicing/expert_ranges.js";
import { fetchedRanges, promisedPieces } from "./plan_state.js";

/** @typedef {import("../../slicing/expert_ranges.js").ExpertRange} ExpertRange */
/** @typedef {import("./plan_state.js").Ranges} Ranges */
/** @typedef {import("./plan_state.js").Piece} Piece */

/** @typedef {Readonly<import("./plan_state.js").WorkerState>} WorkerState */

/** Leased pieces that are not fetched yet; the market allows 64. */
const PROMISES_MOST = 8;
/** Seconds without the relay until heartbeats stop stating ranges that backbones cannot reach. */
const GRACE_S = 15;
const LONGEST_WAIT_S = 60;

/** @type {readonly ((state: WorkerState, nowS: number) => Action | null)[]} */
const RULES = [leave, register, rotate, serve, beat, fetchNext, volunteer, concludeMove, beginMove, planMove, look];

/**
 * Return the action that is due, or null: then ask again after `waitS`, or when something has changed.
 * @param {WorkerState} state
 * @param {number} nowS
 * @returns {Action | null}
 */
export function nextAction(state, nowS) {
    for (const rule of RULES) {
        const action = rule(state, nowS);
        if (action !== null) return action;
    }
    return null;
}

/**
 * Return the seconds until something may become due; at most LONGEST_WAIT_S.
 * @param {WorkerState} state
 * @param {number} nowS
 * @returns {number}
 */
export function waitS(state, nowS) {
    const moments = [nowS + LONGEST_WAIT_S, ...Object.values(state.times), state.serveByS, state.lostS + GRACE_S];
    if (state.move !== null) moments.push(state.move.atS);
    return Math.min(...moments.filter((moment) => moment > nowS).map((moment) => moment - nowS));
}

/**
 * Return the ranges to state in a heartbeat: those that backbones can reach, without those about to be dropped.
 * @param {WorkerState} state
 * @param {number} nowS
 * @returns {readonly ExpertRange[]}
 */
export function toState(state, nowS) {
    if (!state.isJoined && nowS >= state.lostS + GRACE_S) return [];
    const { move } = state;
    if (move === null || !move.isWithdrawn) return mergeRanges(state.served);
    return mergeRanges(state.served.filter((range) => !isSameRange(range, move.range)));
}

/**
 * Return whether everything held is served and stated, and the market has nothing more for this worker.
 * @param {WorkerState} state
 * @param {number} nowS
 * @returns {boolean}
 */
export function isSettled(state, nowS) {
    const isAtRest = state.isJoined && promisedPieces(state).length === 0 && nowS < state.times.volunteerS;
    return (
        isAtRest &&
        state.served.length > 0 &&
        areSameRanges(fetchedRanges(state), state.served) &&
        areSameRanges(toState(state, nowS), state.stated)
    );
}

/** @param {WorkerState} state @returns {Action | null} */
function leave(state) {
    return state.stopReason ? Do.leave(state.stopReason) : null;
}

/** @param {WorkerState} state @param {number} nowS @returns {Action | null} */
function register(state, nowS) {
    return !state.nodeId && nowS >= state.times.siteS ? Do.register() : null;
}

/**
 * Not during a download, which uses the old token.
 * @param {WorkerState} state @param {number} nowS @returns {Action | null}
 */
function rotate(state, nowS) {
    const isTime = nowS >= Math.max(state.times.rotateS, state.times.siteS);
    return state.nodeId && isTime && !state.isFetching ? Do.rotate() : null;
}

/**
 * Serve fetched pieces at once, unless more are coming: each change opens new connections.
 * @param {WorkerState} state @param {number} nowS @returns {Action | null}
 */
function serve(state, nowS) {
    const fetched = fetchedRanges(state);
    if (areSameRanges(fetched, state.served) || nowS < state.times.serveS) return null;
    const isFilling = promisedPieces(state).length > 0 || mayVolunteer(state, nowS);
    const isMore = fetched.length > state.served.length && state.served.every((range) => includesRange(fetched, range));
    if (isFilling && isMore && nowS < state.serveByS) return null;
    return Do.serve(fetched);
}

/** @param {WorkerState} state @param {number} nowS @returns {Action | null} */
function beat(state, nowS) {
    if (!state.nodeId || state.model === null || nowS < state.times.siteS) return null;
    const ranges = toState(state, nowS);
    const leases = state.pieces.map((piece) => piece.leaseId).filter((leaseId) => leaseId !== "");
    if (!areSameRanges(ranges, state.stated)) return Do.beat(ranges, leases);
    const isAnyHeld = ranges.length > 0 || leases.length > 0;
    return nowS >= state.times.heartbeatS && isAnyHeld ? Do.beat(ranges, leases) : null;
}

/** @param {WorkerState} state @param {number} nowS @returns {Action | null} */
function fetchNext(state, nowS) {
    const [first] = promisedPieces(state);
    if (state.isFetching || first === undefined || !state.nodeId || nowS < state.times.fetchS) return null;
    return Do.fetch(first);
}

/** @param {WorkerState} state @param {number} nowS @returns {Action | null} */
function volunteer(state, nowS) {
    if (!mayVolunteer(state, nowS)) return null;
    return Do.volunteer(state.roomBytes, mergeRanges(state.pieces.map((piece) => piece.range)));
}

/** @param {WorkerState} state @param {number} nowS @returns {boolean} */
function mayVolunteer(state, nowS) {
    const isTime = nowS >= Math.max(state.times.volunteerS, state.times.siteS);
    return state.nodeId !== "" && isTime && !state.move?.isWithdrawn && promisedPieces(state).length < PROMISES_MOST;
}

/**
 * Drop or keep a withdrawn piece, by the market's count without it.
 * @param {WorkerState} state @param {number} nowS @returns {Action | null}
 */
function concludeMove(state, nowS) {
    const { move, demand } = state;
    if (move === null || !move.isWithdrawn || !areSameRanges(toState(state, nowS), state.stated)) return null;
    if (demand === null) return nowS >= state.times.siteS ? Do.look() : null;
    return surplus(demand, move.range) >= 0 ? Do.drop(move.range) : Do.stay(move.range);
}

/**
 * Withdraw a piece at the chosen time if its reasons still hold.
 * @param {WorkerState} state @param {number} nowS @returns {Action | null}
 */
function beginMove(state, nowS) {
    const { move, demand } = state;
    if (move === null || move.isWithdrawn || nowS < move.atS) return null;
    if (demand === null || state.demandS < move.atS) return nowS >= state.times.siteS ? Do.look() : null;
    return isSuperfluous(state, demand, move.range) ? Do.withdraw(move.range) : Do.stay(move.range);
}

/** @param {WorkerState} state @param {number} nowS @returns {Action | null} */
function planMove(state, nowS) {
    const { demand } = state;
    if (state.move !== null || demand === null || nowS >= state.times.lookS) return null;
    const found = state.served.filter((range) => isSuperfluous(state, demand, range));
    if (found.length === 0) return null;
    // the one with most replicas; of equals the first
    return Do.planMove(found.reduce((best, range) => (surplus(demand, range) > surplus(demand, best) ? range : best)));
}

/**
 * Read the demand only while the worker has no room for the work there is.
 * @param {WorkerState} state @param {number} nowS @returns {Action | null}
 */
function look(state, nowS) {
    const isTime = nowS >= Math.max(state.times.lookS, state.times.siteS);
    return state.isCrowded && state.served.length > 0 && state.move === null && isTime ? Do.look() : null;
}

/**
 * Return whether others hold enough of a served piece while experts that this worker does not hold are lacking.
 * @param {WorkerState} state
 * @param {import("./plan.js").Demand} demand
 * @param {ExpertRange} range
 * @returns {boolean}
 */
function isSuperfluous(state, demand, range) {
    const held = state.pieces.map((piece) => piece.range);
    const isServed = includesRange(state.served, range);
    return state.isCrowded && isServed && surplus(demand, range) >= 1 && hasGapBeside(demand, held);
}

/**
 * An action. The agent performs it. Leave: say goodbye, answer the requests in flight, end. Register: register a node
 * at the site. Rotate: exchange the token before it expires. Serve: serve exactly these pieces at the relay. Beat: send
 * a heartbeat that states these merged ranges and renews these leases. Fetch: get a piece, from storage or from the
 * site. Volunteer: ask for work; `ranges` are those held or leased already. Look: read the demand. PlanMove: choose a
 * random time after which this piece may be dropped. Withdraw: stop stating the piece, and read the demand without it;
 * it is still served. Stay: keep the piece after all. Drop: delete it.
 *
 * @typedef {{action: "Leave", reason: string}
 *   | {action: "Register"}
 *   | {action: "Rotate"}
 *   | {action: "Serve", ranges: Ranges}
 *   | {action: "Beat", ranges: Ranges, leases: readonly string[]}
 *   | {action: "Fetch", piece: Readonly<Piece>}
 *   | {action: "Volunteer", roomBytes: number, ranges: Ranges}
 *   | {action: "Look"}
 *   | {action: "PlanMove", range: ExpertRange}
 *   | {action: "Withdraw", range: ExpertRange}
 *   | {action: "Stay", range: ExpertRange}
 *   | {action: "Drop", range: ExpertRange}} Action
 */

export const Do = Object.freeze({
    /** @param {string} reason @returns {Action} */
    leave: (reason) => ({ action: "Leave", reason }),
    /** @returns {Action} */
    register: () => ({ action: "Register" }),
    /** @returns {Action} */
    rotate: () => ({ action: "Rotate" }),
    /** @param {Ranges} ranges @returns {Action} */
    serve: (ranges) => ({ action: "Serve", ranges }),
    /** @param {Ranges} ranges @param {readonly string[]} leases @returns {Action} */
    beat: (ranges, leases) => ({ action: "Beat", ranges, leases }),
    /** @param {Readonly<Piece>} piece @returns {Action} */
    fetch: (piece) => ({ action: "Fetch", piece }),
    /** @param {number} roomBytes @param {Ranges} ranges @returns {Action} */
    volunteer: (roomBytes, ranges) => ({ action: "Volunteer", roomBytes, ranges }),
    /** @returns {Action} */
    look: () => ({ action: "Look" }),
    /** @param {ExpertRange} range @returns {Action} */
    planMove: (range) => ({ action: "PlanMove", range }),
    /** @param {ExpertRange} range @returns {Action} */
    withdraw: (range) => ({ action: "Withdraw", range }),
    /** @param {ExpertRange} range @returns {Action} */
    stay: (range) => ({ action: "Stay", range }),
    /** @param {ExpertRange} range @returns {Action} */
    drop: (range) => ({ action: "Drop", range }),
});

/**
 * Experts of one layer with the same replicas and the same target.
 * @typedef {{readonly range: ExpertRange, readonly replicas: number, readonly target: number}} DemandRun
 */

/**
 * All runs of one model. Replicas are those of live workers, including the one that asks.
 * @typedef {{readonly fingerprint: string, readonly runs: readonly DemandRun[]}} Demand
 */

/**
 * Return the replicas of the range's scarcest expert beyond its target; below 0 if there are too few, or if an expert
 * is unknown.
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
 * Return whether experts outside `held` have fewer replicas than their target.
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

/** Return whether a stop has to wait for this action: interrupted, it would lose the token that the site sends.
 *  @param {Action} action */
export const mustFinish = ({ action }) => action === "Register" || action === "Rotate";
