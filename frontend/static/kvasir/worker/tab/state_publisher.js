/**
 * Keeps the one state that the page shows and posts it: at once when something turns, else at most every 250 ms.
 * `tab_worker.js` and `agent.js` update it. It decides nothing.
 */

import { initialState } from "./messages.js";

/** @import { ContributionState, Phase } from "./messages.js" */

const EVERY_MS = 250;
const TURNS = /** @type {const} */ (["phase", "activity", "pauseReason", "problem", "isJoined", "device", "settings"]);

export class StatePublisher {
    /** @param {(state: ContributionState) => void} post */
    constructor(post) {
        this.post = post;
        /** @type {ContributionState} */
        this.state = initialState();
        this.timer = 0;
    }

    /** @param {Partial<ContributionState>} changes */
    update(changes) {
        const hasTurned = TURNS.some((name) => name in changes && changes[name] !== this.state[name]);
        this.state = { ...this.state, ...changes };
        if (hasTurned) {
            this.flush();
        } else if (this.timer === 0) {
            this.timer = setTimeout(() => this.flush(), EVERY_MS);
        }
    }

    /**
     * A new phase; what belonged to the one before is forgotten.
     * @param {Phase} phase
     * @param {Partial<ContributionState>} [changes]
     */
    turn(phase, changes = {}) {
        this.update({ phase, activity: "none", pauseReason: "", problem: null, ...changes });
    }

    flush() {
        clearTimeout(this.timer);
        this.timer = 0;
        this.post(this.state);
    }
}
