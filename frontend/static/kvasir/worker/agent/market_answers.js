/**
 * Reads the market's answers strictly (docs/reference/market.md): a missing or wrong field throws a TypeError or a
 * RangeError. market_client.js uses it; nothing here asks anybody.
 */

import { expertRange } from "../../slicing/expert_ranges.js";
import { integer, list, number, record, text } from "../tab/json_values.js";

/** @typedef {import("../../slicing/expert_ranges.js").ExpertRange} ExpertRange */
/** @typedef {import("./plan_state.js").SiteModel} SiteModel */

const CROWDED = new Set(["the budget is full", "nothing that is wanted fits into the budget"]);

/**
 * Who a node is. `expires`: when the token ends, as the site writes moments; empty for never. `accountId` and
 * `accountKey` are shown once, when the node is registered; the key only for a new account.
 * @typedef {object} NodeCredentials
 * @property {string} nodeId
 * @property {string} token
 * @property {string} expires
 * @property {string} accountId
 * @property {string} accountKey
 */

/**
 * A range that the market promises to this worker.
 * @typedef {object} Assigned
 * @property {true} isAssigned
 * @property {SiteModel} model
 * @property {ExpertRange} range
 * @property {number} nBytes
 * @property {string} kernel
 * @property {number} scarcity
 * @property {number} rateMicrocredits of one row through one expert
 * @property {string} relayUrl
 * @property {string} leaseId
 */

/**
 * No work now. `isCrowded`: there is work that has no room in the worker's budget.
 * @typedef {object} NothingWanted
 * @property {false} isAssigned
 * @property {string} reason
 * @property {string} detail
 * @property {number} retryAfterS
 * @property {boolean} isCrowded
 */

/**
 * An answer to a volunteer.
 * @param {Record<string, unknown>} told
 * @returns {Assigned | NothingWanted}
 */
export function readAssignment(told) {
    if (!told.assigned) {
        const retryAfterS = Math.min(Math.max(number(told.retry_after_s), 0.1), 3600);
        const [reason, detail] = [text(told.reason), text(told.detail ?? "")];
        return { isAssigned: false, reason, detail, retryAfterS, isCrowded: CROWDED.has(reason) };
    }
    const model = {
        name: text(told.model),
        fingerprint: text(told.fingerprint),
        nLayer: integer(told.n_layer),
        nExpert: integer(told.n_expert),
    };
    const [start, stop] = list(told.experts).map(integer);
    return {
        isAssigned: true,
        model,
        range: expertRange(integer(told.layer), start, stop),
        nBytes: integer(told.bytes),
        kernel: text(told.kernel),
        scarcity: number(told.scarcity),
        rateMicrocredits: integer(told.rate_microcredits_per_row),
        relayUrl: text(told.relay_url),
        leaseId: text(told.lease_id),
    };
}

/**
 * An answer to the question for one model's demand.
 * @param {Record<string, unknown>} told
 * @returns {import("./demand.js").Demand}
 */
export function readDemand(told) {
    const models = list(told.models);
    if (models.length !== 1) throw new TypeError(`1 model was expected, not ${models.length}`);
    const found = record(models[0]);
    return { fingerprint: text(found.fingerprint), runs: list(found.layers).flatMap(runsOf) };
}

/**
 * The answer to a registration.
 * @param {Record<string, unknown>} told
 * @returns {NodeCredentials}
 */
export function readCredentials(told) {
    return {
        nodeId: text(told.node_id),
        ...readToken(told),
        accountId: text(told.account_id ?? ""),
        accountKey: text(told.account_key ?? ""),
    };
}

/**
 * A token and when it ends.
 * @param {Record<string, unknown>} told
 * @returns {{token: string, expires: string}}
 */
export function readToken(told) {
    return { token: text(told.token), expires: text(told.expires ?? "") };
}

/** The runs of one layer of a demand. @param {unknown} value @returns {import("./demand.js").DemandRun[]} */
function runsOf(value) {
    const layer = record(value);
    return list(layer.segments).map((item) => {
        const segment = record(item);
        const [start, stop] = list(segment.experts).map(integer);
        const range = expertRange(integer(layer.layer), start, stop);
        return { range, replicas: integer(segment.replicas), target: integer(segment.target) };
    });
}
