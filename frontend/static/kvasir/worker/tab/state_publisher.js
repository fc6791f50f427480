/**
 * Keeps the one state that the page shows and posts it: at once when something turns, else at most every 250 ms.
 * `tab_worker.js` and `agent.js` update it. It decides nothing.
 */

import { AgentEndedError, KernelError, StorageError, UnsupportedBrowserError } from "../../errors.js";
import { initialState } from "./messages.js";

/** @import { ContributionState, PauseReason, Phase, Problem, Surroundings } from "./messages.js" */
/** @import { Settings } from "../agent/state.js" */

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

/** @param {unknown} error @returns {Problem} */
export function problemOf(error) {
    const detail = error instanceof Error ? error.message : String(error);
    return { code: codeOf(error), detail, retryAtMs: 0 };
}

/** @param {unknown} error */
function codeOf(error) {
    if (error instanceof AgentEndedError) return error.code;
    if (error instanceof StorageError) return "storage_unavailable";
    if (error instanceof UnsupportedBrowserError) return "unsupported";
    return error instanceof KernelError ? "kernel" : "defect";
}

/** @type {Readonly<Surroundings>} */
export const UNKNOWN_SURROUNDINGS = Object.freeze({ isOnPower: null, isMetered: null, isVisible: true });

/**
 * @param {Readonly<Settings>} settings
 * @param {Readonly<Surroundings>} surroundings
 * @returns {PauseReason} "" when it may work
 */
export function pauseReason(settings, surroundings) {
    if (settings.isPaused) return "visitor";
    if (settings.onlyOnPower && surroundings.isOnPower === false) return "battery";
    if (settings.onlyUnmetered && surroundings.isMetered === true) return "metered";
    return "";
}
