/**
 * Asks the market for rewards, entries and the leaderboard, and makes the CSV. The rewards page calls it; it draws
 * nothing. Amounts are microcredits, whole numbers.
 */

/**
 * @typedef {object} WorkItem  A day of work of one range, as /api/rewards has it.
 * @property {string} node_id
 * @property {string} fingerprint
 * @property {number} layer
 * @property {[number, number]} experts
 * @property {string} day
 * @property {number} row_experts
 * @property {number} microcredits
 * @property {boolean} paid
 * @property {string} reason
 */

/** @typedef {{node_id: string, verified_row_experts: number, failures: number, quarantined: boolean, evidence: unknown[]}} NodeStanding */

/**
 * @typedef {object} Rewards
 * @property {"account" | "node"} scope
 * @property {string} id
 * @property {number} [balance_microcredits]
 * @property {number} earned_microcredits
 * @property {number} paid_row_experts
 * @property {number} withheld_microcredits
 * @property {number} unpaid_row_experts
 * @property {WorkItem[]} items
 * @property {string | null} next
 * @property {NodeStanding[]} nodes
 */

/** @typedef {{event: string, type: string, microcredits: number, note: string, at: string}} Entry */
/** @typedef {{rank: number, kind: string, id: string, microcredits: number, row_experts: number}} Earner */

const DEADLINE_MS = 20_000;

/** The market said no, or nothing. `code` is its own, `away` when it did not answer. */
export class RewardsError extends Error {
    /** @param {string} code @param {string} message */
    constructor(code, message) {
        super(message);
        this.code = code;
    }
}

/**
 * @param {string} path
 * @param {Record<string, string>} query
 * @param {string} [key]
 * @returns {Promise<any>}
 */
async function ask(path, query, key = "") {
    /** @type {Record<string, string>} */
    const headers = key ? { authorization: `Bearer ${key}` } : {};
    const asked = Object.fromEntries(Object.entries(query).filter(([, value]) => value !== ""));
    let response;
    try {
        const signal = AbortSignal.timeout(DEADLINE_MS);
        response = await fetch(`/api/${path}?${new URLSearchParams(asked)}`, { headers, signal, cache: "no-store" });
    } catch (error) {
        throw new RewardsError("away", String(error));
    }
    const answer = await response.json().catch(() => ({}));
    if (!response.ok)
        throw new RewardsError(answer.error?.code ?? "away", answer.error?.message ?? `HTTP ${response.status}`);
    return answer;
}

/**
 * One page of days of work, and the sums over all.
 * @param {string} key  an account's, or a node's token
 * @param {{cursor?: string, node?: string, paid?: string, limit?: number}} [query]
 * @returns {Promise<Rewards>}
 */
export function askRewards(key, { cursor = "", node = "", paid = "", limit = 20 } = {}) {
    return ask("rewards", { cursor, node, paid, limit: String(limit) }, key);
}

/**
 * One page of ledger entries.
 * @param {string} key
 * @param {string} [cursor]
 * @returns {Promise<{items: Entry[], next: string | null}>}
 */
export function askEntries(key, cursor = "") {
    return ask("rewards/entries", { cursor, limit: "10" }, key);
}

/** @returns {Promise<{items: Earner[]}>} */
export function askLeaderboard() {
    return ask("leaderboard", { limit: "10" });
}

/**
 * All days of work as CSV (RFC 4180), the newest first.
 * @param {string} key
 * @param {{node?: string, paid?: string}} query
 * @returns {Promise<string>}
 */
export async function rewardsCsv(key, query) {
    const lines = ["day,node_id,fingerprint,layer,first_expert,last_expert,row_experts,microcredits,paid,reason"];
    for (let cursor = ""; ; ) {
        const answer = await askRewards(key, { ...query, cursor, limit: 1000 });
        lines.push(...answer.items.map(csvLine));
        if (answer.next === null) break;
        cursor = answer.next;
    }
    return `${lines.join("\r\n")}\r\n`;
}

/** @param {WorkItem} item */
function csvLine(item) {
    const { day, node_id: node, fingerprint, layer, experts, row_experts: rows, microcredits, paid, reason } = item;
    return [day, node, fingerprint, layer, experts[0], experts[1] - 1, rows, microcredits, paid, reason]
        .map(csvField)
        .join(",");
}

/** @param {unknown} value */
function csvField(value) {
    const text = String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
