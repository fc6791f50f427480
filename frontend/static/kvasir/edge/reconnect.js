/**
 * When a node that lost its relay connects again: a pure rule. The delay is random over its whole length, so that
 * thousands of nodes do not come back to a relay at the same moment.
 */

export const FIRST_S = 0.5;
const LONGEST_S = 30;
/** A connection that lasted this many seconds counts as good. */
export const STEADY_S = 30;
/** The least delay, as a share of the longest that is possible now. */
const LEAST_SHARE = 0.1;

/**
 * Return the number of failures in a row after a connection that lasted `lastedS` seconds (0: it never opened).
 * @param {number} nFailures
 * @param {number} lastedS
 * @returns {number}
 */
export function failuresAfter(nFailures, lastedS) {
    return lastedS >= STEADY_S ? 0 : nFailures + 1;
}

/**
 * Return the seconds to wait after `nFailures` in a row; `jitter` is random in [0, 1).
 * @param {number} nFailures
 * @param {number} jitter
 * @returns {number}
 */
export function reconnectDelayS(nFailures, jitter) {
    const longest = Math.min(FIRST_S * 2 ** Math.min(Math.max(nFailures - 1, 0), 16), LONGEST_S);
    return longest * (LEAST_SHARE + (1 - LEAST_SHARE) * jitter);
}
