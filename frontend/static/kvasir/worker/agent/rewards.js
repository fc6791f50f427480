/**
 * This node's rewards for its page: read from GET /api/rewards with the node's token. `tab_worker.js` calls it from
 * time to time. All numbers are the site's; only pending work is computed here.
 */

/** @import { RewardFacts } from "../tab/messages.js" */

const DEADLINE_MS = 20_000;

/**
 * Return the site's answer, or null if there is none now.
 * @param {string} siteUrl
 * @param {string} bearer a node's token or an account's key
 * @param {typeof globalThis.fetch} [fetch]
 * @returns {Promise<{status: number, answer: any} | null>}
 */
export async function readRewards(siteUrl, bearer, fetch = globalThis.fetch) {
    try {
        const response = await fetch(`${siteUrl}/api/rewards?limit=1`, {
            headers: { authorization: `Bearer ${bearer}` },
            signal: AbortSignal.timeout(DEADLINE_MS),
            cache: "no-store",
            credentials: "omit",
        });
        return { status: response.status, answer: await response.json() };
    } catch {
        return null; // the page shows the age of its figures
    }
}

/**
 * @param {any} answer of GET /api/rewards with a node's token
 * @param {{totalRowExperts: number, rateMicrocredits: number, nowMs: number}} known row-experts that this node has
 *   answered
 * @returns {RewardFacts}
 */
export function rewardFacts(answer, { totalRowExperts, rateMicrocredits, nowMs }) {
    const paidRowExperts = Number(answer.paid_row_experts);
    const unpaidRowExperts = Number(answer.unpaid_row_experts);
    const pendingRowExperts = Math.max(0, totalRowExperts - paidRowExperts - unpaidRowExperts);
    const nAll = paidRowExperts + unpaidRowExperts + pendingRowExperts;
    return {
        earnedMicrocredits: Number(answer.earned_microcredits),
        paidRowExperts,
        unpaidRowExperts,
        withheldMicrocredits: Number(answer.withheld_microcredits),
        pendingRowExperts,
        pendingMicrocredits: Math.floor(pendingRowExperts * rateMicrocredits),
        verifiedShare: nAll > 0 ? paidRowExperts / nAll : 0,
        rateMicrocredits,
        isQuarantined: answer.nodes.some((/** @type {any} */ node) => node.quarantined),
        asOfMs: nowMs,
    };
}
