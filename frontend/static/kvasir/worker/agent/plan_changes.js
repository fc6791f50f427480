/**
 * What a worker knows after something has happened: pure steps from one WorkerState to the next. Twin of
 * kvasir/worker/agent/plan_changes.py. The agent applies them with what it was answered; plan.js decides from the result.
 * Moments are seconds of the plan's clock.
 */

import { reconnectDelayS } from "../../edge/reconnect.js";
import { areSameRanges, includesRange, isSameRange, nShared } from "../../slicing/expert_ranges.js";
import { makePiece, Outcome } from "./plan_state.js";

/** @typedef {Readonly<import("./plan_state.js").WorkerState>} WorkerState */
/** @typedef {import("./plan_state.js").Ranges} Ranges */
/** @typedef {import("../../slicing/expert_ranges.js").ExpertRange} ExpertRange */
/** @typedef {import("./market_client.js").Assigned} Assigned */
/** @typedef {import("./market_client.js").NothingWanted} NothingWanted */

/** Of a range that is fetched, while others are on their way. */
const SERVE_WITHIN_S = 30;
const BEATS_PER_LEASE = 3;
/** Of that, at random. */
const BEAT_SHORTEST = 0.7;
const NO_ROOM_RETRY_S = 300;
const HOPELESS_RETRY_S = 60;
const HELD_ALREADY_RETRY_S = 5;
/** A failure that took long already is followed by a longer wait. */
const FAILED_BEFORE = 6;

/**
 * @param {WorkerState} state
 * @param {Partial<import("./plan_state.js").WorkerState>} changes
 * @returns {WorkerState}
 */
export function replaced(state, changes) {
    return Object.freeze({ ...state, ...changes });
}

/**
 * With other moments in `times`.
 * @param {WorkerState} state
 * @param {Partial<import("./plan_state.js").NotBefore>} moments
 * @returns {WorkerState}
 */
export function notBefore(state, moments) {
    return replaced(state, { times: Object.freeze({ ...state.times, ...moments }) });
}

/**
 * With one more piece to fetch. An offer of what is held already is passed over for a while.
 * @param {WorkerState} state
 * @param {Assigned} answer
 * @param {number} nowS
 * @returns {WorkerState}
 */
export function promised(state, answer, nowS) {
    if (state.pieces.some((piece) => nShared(piece.range, answer.range) > 0)) {
        return notBefore(state, { volunteerS: nowS + HELD_ALREADY_RETRY_S });
    }
    const piece = makePiece(answer.range, answer.nBytes, { kernel: answer.kernel, leaseId: answer.leaseId });
    return replaced(state, { model: answer.model, pieces: [...state.pieces, piece], isCrowded: false });
}

/**
 * Waiting as long as the market said.
 * @param {WorkerState} state
 * @param {NothingWanted} answer
 * @param {number} nowS
 * @returns {WorkerState}
 */
export function notWanted(state, answer, nowS) {
    const waiting = replaced(state, { isCrowded: answer.isCrowded });
    return notBefore(waiting, { volunteerS: nowS + answer.retryAfterS });
}

/**
 * After a download that ended well or not; `jitter` is random in [0, 1).
 * @param {WorkerState} state
 * @param {import("./plan_state.js").Fetched} done
 * @param {number} nowS
 * @param {number} jitter
 * @returns {WorkerState}
 */
export function fetched(state, done, nowS, jitter) {
    const idle = replaced(state, { isFetching: false });
    const { range } = done.piece;
    if (done.outcome === Outcome.FETCHED) {
        const pieces = idle.pieces.map((piece) =>
            isSameRange(piece.range, range) ? Object.freeze({ ...piece, isFetched: true }) : piece,
        );
        return replaced(idle, { pieces, serveByS: Math.min(idle.serveByS, nowS + SERVE_WITHIN_S) });
    }
    if (done.outcome === Outcome.AGAIN) {
        return notBefore(idle, { fetchS: nowS + reconnectDelayS(FAILED_BEFORE, jitter) });
    }
    const retryS = done.outcome === Outcome.NO_ROOM ? NO_ROOM_RETRY_S : HOPELESS_RETRY_S;
    return notBefore(without(idle, range), { volunteerS: nowS + retryS });
}

/**
 * With exactly these pieces at the relay.
 * @param {WorkerState} state
 * @param {Ranges} ranges
 * @returns {WorkerState}
 */
export function served(state, ranges) {
    return replaced(state, { served: ranges, serveByS: Infinity, isJoined: state.isJoined && ranges.length > 0 });
}

/**
 * After a heartbeat with these ranges was accepted: promises that it states are kept.
 * @param {WorkerState} state
 * @param {Ranges} ranges
 * @param {number} leaseS
 * @param {number} nowS
 * @param {number} jitter random in [0, 1)
 * @returns {WorkerState}
 */
export function beaten(state, ranges, leaseS, nowS, jitter) {
    const share = BEAT_SHORTEST + (1 - BEAT_SHORTEST) * jitter;
    const told = notBefore(state, { heartbeatS: nowS + (share * leaseS) / BEATS_PER_LEASE });
    if (areSameRanges(ranges, told.stated)) return told;
    const atRelay = ranges.length > 0 ? told.served : [];
    const pieces = told.pieces.map((piece) =>
        includesRange(atRelay, piece.range) ? Object.freeze({ ...piece, leaseId: "" }) : piece,
    );
    return replaced(told, { pieces, stated: ranges, demand: null });
}

/**
 * With a demand that was read just now.
 * @param {WorkerState} state
 * @param {import("./plan.js").Demand} demand
 * @param {number} nowS
 * @param {number} everyS
 * @returns {WorkerState}
 */
export function looked(state, demand, nowS, everyS) {
    return notBefore(replaced(state, { demand, demandS: nowS }), { lookS: nowS + everyS });
}

/**
 * With a piece that may be given up at that moment.
 * @param {WorkerState} state
 * @param {ExpertRange} range
 * @param {number} atS
 * @returns {WorkerState}
 */
export function moving(state, range, atS) {
    return replaced(state, { move: Object.freeze({ range, atS, isWithdrawn: false }) });
}

/**
 * With a piece that heartbeats do not state any more.
 * @param {WorkerState} state
 * @param {ExpertRange} range
 * @param {number} nowS
 * @returns {WorkerState}
 */
export function withdrawn(state, range, nowS) {
    return replaced(state, { move: Object.freeze({ range, atS: nowS, isWithdrawn: true }) });
}

/**
 * With no piece to be given up; the demand is read anew before that is thought of again.
 * @param {WorkerState} state
 * @returns {WorkerState}
 */
export function stayed(state) {
    return replaced(state, { move: null, demand: null });
}

/**
 * Without a piece; other work is asked for at once.
 * @param {WorkerState} state
 * @param {ExpertRange} range
 * @param {number} nowS
 * @returns {WorkerState}
 */
export function dropped(state, range, nowS) {
    const rest = replaced(without(state, range), { move: null, demand: null, isCrowded: false });
    return notBefore(rest, { volunteerS: nowS });
}

/**
 * The site has another model: nothing that is held counts any more.
 * @param {WorkerState} state
 * @returns {WorkerState}
 */
export function forgotten(state) {
    const nothing = { model: null, pieces: [], isFetching: false, served: [], stated: [] };
    return replaced(state, { ...nothing, move: null, demand: null, isCrowded: false });
}

/**
 * After the relay was reached, or lost.
 * @param {WorkerState} state
 * @param {boolean} isJoined
 * @param {number} nowS
 * @returns {WorkerState}
 */
export function relayChanged(state, isJoined, nowS) {
    return isJoined === state.isJoined ? state : replaced(state, { isJoined, lostS: nowS });
}

/** @param {WorkerState} state @param {ExpertRange} range @returns {WorkerState} */
function without(state, range) {
    return replaced(state, { pieces: state.pieces.filter((piece) => !isSameRange(piece.range, range)) });
}
