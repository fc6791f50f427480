/**
 * Whether a tab that the visitor started may work at this moment: paused by hand, on battery, on a metered connection.
 * One pure rule; `tab_worker.js` asks it whenever settings or surroundings change. What a browser does not say holds
 * nobody up.
 */

/** @import { PauseReason, Surroundings } from "./messages.js" */
/** @import { Settings } from "../agent/state.js" */

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
