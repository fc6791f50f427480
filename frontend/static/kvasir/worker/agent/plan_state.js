/**
 * A worker's state: plan.js decides from it, plan_changes.js returns the next one. Values are immutable. Times are
 * seconds of one monotonic clock.
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
 * A leased range; it is fetched, served and dropped as a whole. `leaseId`: until it is served.
 * @typedef {object} Piece
 * @property {ExpertRange} range
 * @property {number} nBytes
 * @property {string} kernel
 * @property {string} leaseId
 * @property {boolean} isFetched
 */

/**
 * A piece with enough other replicas, to be dropped after `atS` if that still holds. Once it is withdrawn, heartbeats
 * no longer state it, but it is still served.
 * @typedef {{readonly range: ExpertRange, readonly atS: number, readonly isWithdrawn: boolean}} Move
 */

/**
 * Times before which something is not tried (again). `siteS`: any request to the site.
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
 * Everything that a decision depends on.
 * @typedef {object} WorkerState
 * @property {number} roomBytes for all experts
 * @property {string} nodeId
 * @property {SiteModel | null} model
 * @property {readonly Readonly<Piece>[]} pieces
 * @property {boolean} isFetching
 * @property {Ranges} served pieces served at the relay, ascending
 * @property {boolean} isJoined
 * @property {number} lostS when the relay was last lost
 * @property {number} serveByS how long fetched pieces wait for others
 * @property {Ranges} stated by the last accepted heartbeat
 * @property {boolean} isCrowded the market has work that does not fit
 * @property {Demand | null} demand never older than the last change of `stated`
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
 * Return a new worker's state with the values of `known`; `roomBytes` is required.
 * @param {Partial<WorkerState> & {roomBytes: number}} known
 * @returns {Readonly<WorkerState>}
 */
export function workerState(known) {
    return Object.freeze({ ...STRANGER, ...known });
}

/**
 * Return a piece, by default one that is not fetched yet.
 * @param {ExpertRange} range
 * @param {number} nBytes
 * @param {Partial<Piece>} [known]
 * @returns {Readonly<Piece>}
 */
export function makePiece(range, nBytes, known = {}) {
    return Object.freeze({ kernel: "", leaseId: "", isFetched: false, ...known, range, nBytes });
}

/**
 * Return the pieces that are stored and verified, ascending.
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
 * Return the pieces that are still to be fetched.
 * @param {Readonly<WorkerState>} state
 * @returns {readonly Readonly<Piece>[]}
 */
export function promisedPieces(state) {
    return state.pieces.filter((piece) => !piece.isFetched);
}

/** The outcome of a fetch; the values are those of the Python plan. */
export const Outcome = Object.freeze({
    FETCHED: "fetched",
    /** Later. */
    AGAIN: "again",
    /** The piece is dropped. */
    HOPELESS: "hopeless",
    /** The piece is dropped, and no other is requested until something has changed. */
    NO_ROOM: "no room",
});

/** @typedef {(typeof Outcome)[keyof typeof Outcome]} FetchOutcome */

/**
 * A fetch that has ended. `problem` is text for people.
 * @typedef {object} Fetched
 * @property {Readonly<import("./plan_state.js").Piece>} piece
 * @property {FetchOutcome} outcome
 * @property {string} problem
 */
