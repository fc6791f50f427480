/**
 * What plan.js can tell a worker to do: plain frozen objects, told apart by `action`. Twin of
 * kvasir/worker/agent/plan_actions.py. The agent does it; nothing here does anything.
 */

/** @typedef {import("../../slicing/expert_ranges.js").ExpertRange} ExpertRange */
/** @typedef {import("./plan_state.js").Ranges} Ranges */
/** @typedef {import("./plan_state.js").Piece} Piece */

/**
 * Leave: say goodbye, answer what is under way, end.
 * Register: become a node of the site. Rotate: take a new token before this one ends.
 * Serve: have exactly these pieces at the relay.
 * Beat: send a heartbeat that states these merged ranges and keeps these promises.
 * Fetch: get a piece, from storage or from the site.
 * Volunteer: ask for work; `ranges` is what is held or promised already.
 * Look: read the demand.
 * PlanMove: choose a moment at random after which this piece may be given up.
 * Withdraw: state the piece no more, and look whether it is missed; it is served on.
 * Stay: keep the piece after all. Drop: give it up.
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

/** Whether a stop has to wait for this action: interrupted, it would lose the token that the site sends.
 *  @param {Action} action */
export const mustFinish = ({ action }) => action === "Register" || action === "Rotate";
