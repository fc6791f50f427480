/**
 * How events change a worker's state: pure functions from one WorkerState to the next. The agent applies them to the
 * answers it receives; plan.js decides from the result. Times are seconds of the plan's clock.
 */

import { reconnectDelayS } from "../../edge/reconnect.js";
import { areSameRanges, includesRange, isSameRange, nShared } from "../../slicing/expert_ranges.js";
import { makePiece, Outcome } from "./plan_state.js";

/** @typedef {Readonly<import("./plan_state.js").WorkerState>} WorkerState */
/** @typedef {import("./plan_state.js").Ranges} Ranges */
/** @typedef {import("../../slicing/expert_ranges.js").ExpertRange} ExpertRange */
/** @typedef {import("./market_client.js").Assigned} Assigned */
/** @typedef {import("./market_client.js").NothingWanted} NothingWanted */

/** How long a fetched range may wait for others that are being fetched. */
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
 * Return the state with other `times`.
 * @param {WorkerState} state
 * @param {Partial<import("./plan_state.js").NotBefore>} moments
 * @returns {WorkerState}
 */
export function notBefore(state, moments) {
    return replaced(state, { times: Object.freeze({ ...state.times, ...moments }) });
}

/**
 * Return the state with one more piece to fetch. An offer of experts that are held already delays the next request.
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
 * Return the state that waits as long as the market asked.
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
 * Return the state after a download, successful or not; `jitter` is random in [0, 1).
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
 * Return the state that serves exactly these pieces.
 * @param {WorkerState} state
 * @param {Ranges} ranges
 * @returns {WorkerState}
 */
export function served(state, ranges) {
    return replaced(state, { served: ranges, serveByS: Infinity, isJoined: state.isJoined && ranges.length > 0 });
}

/**
 * Return the state after a heartbeat with these ranges was accepted: the leases that it states are fulfilled.
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
 * Return the state with a demand that was just read.
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
 * Return the state with a piece that may be dropped at that time.
 * @param {WorkerState} state
 * @param {ExpertRange} range
 * @param {number} atS
 * @returns {WorkerState}
 */
export function moving(state, range, atS) {
    return replaced(state, { move: Object.freeze({ range, atS, isWithdrawn: false }) });
}

/**
 * Return the state with a piece that heartbeats no longer state.
 * @param {WorkerState} state
 * @param {ExpertRange} range
 * @param {number} nowS
 * @returns {WorkerState}
 */
export function withdrawn(state, range, nowS) {
    return replaced(state, { move: Object.freeze({ range, atS: nowS, isWithdrawn: true }) });
}

/**
 * Return the state without a move; the demand must be read again before the next one.
 * @param {WorkerState} state
 * @returns {WorkerState}
 */
export function stayed(state) {
    return replaced(state, { move: null, demand: null });
}

/**
 * Return the state without a piece; other work is due at once.
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
 * Return the state after the site changed its model: without pieces.
 * @param {WorkerState} state
 * @returns {WorkerState}
 */
export function forgotten(state) {
    const nothing = { model: null, pieces: [], isFetching: false, served: [], stated: [] };
    return replaced(state, { ...nothing, move: null, demand: null, isCrowded: false });
}

/**
 * Return the state after the relay was joined or lost.
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
