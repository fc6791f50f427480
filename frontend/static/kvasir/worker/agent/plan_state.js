/**
 * What a worker knows: the one value that plan.js decides from and plan_changes.js goes on from. Twin of
 * kvasir/worker/agent/plan_state.py. Values are never changed, only replaced; moments are seconds of one clock that never
 * goes back.
 */

import { compareRanges } from "../../slicing/expert_ranges.js";

/** @typedef {import("../../slicing/expert_ranges.js").ExpertRange} ExpertRange */
/** @typedef {import("./plan.js").Demand} Demand */

/** @typedef {readonly ExpertRange[]} Ranges */

/**
 * The model that the worker holds experts of.
 * @typedef {Readonly<{name: string, fingerprint: string, nLayer: number, nExpert: number}>} SiteModel
 */

/**
 * A range that was promised as one, and is fetched, served and dropped as one. `leaseId`: until it is served.
 * @typedef {object} Piece
 * @property {ExpertRange} range
 * @property {number} nBytes
 * @property {string} kernel
 * @property {string} leaseId
 * @property {boolean} isFetched
 */

/**
 * A piece that others hold often enough: given up after `atS`, if that is still so. Once it is withdrawn, heartbeats
 * do not state it any more, though it is still served.
 * @typedef {{readonly range: ExpertRange, readonly atS: number, readonly isWithdrawn: boolean}} Move
 */

/**
 * The moments before which something is not tried (again). `siteS`: anything that asks the site.
 * @typedef {object} NotBefore
 * @property {number} siteS
 * @property {number} heartbeatS
 * @property {number} volunteerS
 * @property {number} fetchS
 * @property {number} serveS
 * @property {number} lookS
 * @property {number} rotateS
 */

/**
 * All that a decision depends on.
 * @typedef {object} WorkerState
 * @property {number} roomBytes for experts, all together
 * @property {string} nodeId
 * @property {SiteModel | null} model
 * @property {readonly Readonly<Piece>[]} pieces
 * @property {boolean} isFetching
 * @property {Ranges} served pieces that are at the relay, ascending
 * @property {boolean} isJoined
 * @property {number} lostS when the relay was lost last
 * @property {number} serveByS the first piece that waits for others waits until then
 * @property {Ranges} stated by the last heartbeat that was accepted
 * @property {boolean} isCrowded the market has work, but there is no room for it
 * @property {Demand | null} demand none that is older than what was stated last
 * @property {number} demandS
 * @property {Move | null} move
 * @property {string} stopReason
 * @property {Readonly<NotBefore>} times
 */

/** @type {Readonly<NotBefore>} */
export const NO_TIMES = Object.freeze({
    siteS: 0,
    heartbeatS: 0,
    volunteerS: 0,
    fetchS: 0,
    serveS: 0,
    lookS: 0,
    rotateS: Infinity,
});

/** @type {Readonly<WorkerState>} */
const STRANGER = Object.freeze({
    roomBytes: 0,
    nodeId: "",
    model: null,
    pieces: [],
    isFetching: false,
    served: [],
    isJoined: false,
    lostS: -Infinity,
    serveByS: Infinity,
    stated: [],
    isCrowded: false,
    demand: null,
    demandS: -Infinity,
    move: null,
    stopReason: "",
    times: NO_TIMES,
});

/**
 * The state of a worker that knows no more than `known`: at least its room.
 * @param {Partial<WorkerState> & {roomBytes: number}} known
 * @returns {Readonly<WorkerState>}
 */
export function workerState(known) {
    return Object.freeze({ ...STRANGER, ...known });
}

/**
 * A piece; it is a promise until it is fetched.
 * @param {ExpertRange} range
 * @param {number} nBytes
 * @param {Partial<Piece>} [known]
 * @returns {Readonly<Piece>}
 */
export function makePiece(range, nBytes, known = {}) {
    return Object.freeze({ kernel: "", leaseId: "", isFetched: false, ...known, range, nBytes });
}

/**
 * Pieces that are stored and verified, ascending.
 * @param {Readonly<WorkerState>} state
 * @returns {Ranges}
 */
export function fetchedRanges(state) {
    return state.pieces
        .filter((piece) => piece.isFetched)
        .map((piece) => piece.range)
        .sort(compareRanges);
}

/**
 * Pieces that are still to be fetched.
 * @param {Readonly<WorkerState>} state
 * @returns {readonly Readonly<Piece>[]}
 */
export function promisedPieces(state) {
    return state.pieces.filter((piece) => !piece.isFetched);
}

/** What came of a fetch; the values are those of the Python twin. */
export const Outcome = Object.freeze({
    FETCHED: "fetched",
    /** Later. */
    AGAIN: "again",
    /** This piece is given up. */
    HOPELESS: "hopeless",
    /** Given up, and no other is asked for until something has changed. */
    NO_ROOM: "no room",
});

/** @typedef {(typeof Outcome)[keyof typeof Outcome]} FetchOutcome */

/**
 * The end of a fetch. `problem` is for people.
 * @typedef {object} Fetched
 * @property {Readonly<import("./plan_state.js").Piece>} piece
 * @property {FetchOutcome} outcome
 * @property {string} problem
 */
