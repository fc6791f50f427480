/**
 * What came of fetching a piece: the words between whoever downloads and the plan. Twin of Outcome and Fetched in
 * kvasir/worker/agent/fetch.py. It fetches nothing.
 */

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
