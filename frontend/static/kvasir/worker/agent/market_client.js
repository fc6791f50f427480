/**
 * Client of a site's market API: register, heartbeat, demand, volunteer, rewards (docs/reference/market.md). The agent calls it.
 * Every call has a deadline. It throws MarketAwayError if the call may succeed later, also for an answer that does not
 * match the document, and MarketRefusedError if it will not. Tokens and keys are never logged or shown.
 */

import { MarketAwayError, MarketRefusedError, messageOf } from "../../errors.js";
import { expertRange } from "../../slicing/expert_ranges.js";

/** @typedef {import("../../slicing/expert_ranges.js").ExpertRange} ExpertRange */
/** @typedef {import("./plan_state.js").SiteModel} SiteModel */
/** @typedef {import("./plan.js").Demand} Demand */

export { MarketAwayError, MarketRefusedError };

/** Of one call in all. */
const DEADLINE_S = 30;
/** Enough for a demand in which every expert of a large model is a run of its own. */
const ANSWER_BYTES_MOST = 16 * 1024 * 1024;
export const QUARANTINE_RETRY_S = 600;
const AWAY = new Set([408, 409, 425, 429]);

/**
 * A worker's heartbeat. `facts`: the optional fields of docs/reference/market.md, by their names there.
 * @typedef {object} Heartbeat
 * @property {string} nodeId
 * @property {SiteModel} model
 * @property {readonly ExpertRange[]} ranges
 * @property {readonly string[]} [leases]
 * @property {Readonly<Record<string, string | number>>} [facts]
 * @property {boolean} [isLeaving]
 */

/** The market of one site. `token` is this node's, or "" before it is registered. */
export class MarketClient {
    #base;
    #fetch;
    #deadlineS;

    /**
     * @param {string} siteUrl
     * @param {string} [token]
     * @param {{fetch?: typeof fetch, deadlineS?: number}} [means] for tests
     */
    constructor(siteUrl, token = "", means = {}) {
        this.#base = siteUrl.replace(/\/+$/, "");
        this.token = token;
        this.#fetch = means.fetch ?? globalThis.fetch.bind(globalThis);
        this.#deadlineS = means.deadlineS ?? DEADLINE_S;
    }

    /**
     * Register a node, under an account if `accountKey` is given.
     * @param {{name: string, invite?: string, accountKey?: string}} who
     * @returns {Promise<NodeCredentials>}
     * @throws {MarketRefusedError} if that needs an invite or an operator
     */
    async register({ name, invite = "", accountKey = "" }) {
        const answer = await this.#ask("POST", "nodes", invite ? { name, invite } : { name }, accountKey);
        return this.#read(answer, readCredentials);
    }

    /**
     * Exchange this node's token for a new one; the old one becomes invalid.
     * @returns {Promise<{token: string, expires: string}>}
     */
    async rotate() {
        const answer = await this.#ask("POST", "nodes/rotate", {});
        return this.#read(answer, readToken);
    }

    /**
     * Send a heartbeat. @param {Heartbeat} beat
     * @returns {Promise<number>} the lease in seconds
     */
    async heartbeat({ nodeId, model, ranges, leases = [], facts = {}, isLeaving = false }) {
        const answer = await this.#ask("POST", "expert-coverage", {
            worker_id: nodeId,
            model: model.fingerprint,
            n_layer: model.nLayer,
            n_expert: model.nExpert,
            segments: segments(ranges),
            url: ranges.length > 0 ? "relay:" : "",
            leases,
            leaving: isLeaving,
            ...facts,
        });
        return this.#read(answer, (told) => number(told.lease_s));
    }

    /**
     * Return the demand for this model.
     * @param {string} fingerprint
     * @returns {Promise<Demand>}
     */
    async demand(fingerprint) {
        const answer = await this.#ask("GET", `expert-demand?model=${encodeURIComponent(fingerprint)}`);
        return this.#read(answer, readDemand);
    }

    /**
     * Ask for work.
     * @param {string} nodeId
     * @param {number} roomBytes for all experts, including those of the held `ranges`
     * @param {readonly ExpertRange[]} ranges
     * @returns {Promise<Assigned | NothingWanted>}
     */
    async volunteer(nodeId, roomBytes, ranges) {
        const body = { worker_id: nodeId, budget_bytes: roomBytes, ranges: segments(ranges) };
        return this.#read(await this.#ask("POST", "expert-volunteer", body), readAssignment);
    }

    /**
     * Return this node's rewards as the site sends them (docs/reference/rewards.md).
     * @param {number} [limit] items of the page
     * @returns {Promise<Record<string, unknown>>}
     */
    async rewards(limit = 1) {
        return this.#read(await this.#ask("GET", `rewards?limit=${limit}`), (told) => told);
    }

    /**
     * @param {"GET" | "POST"} method
     * @param {string} route
     * @param {object} [body]
     * @param {string} [key] instead of the node's token
     * @returns {Promise<unknown>}
     */
    async #ask(method, route, body, key) {
        const url = `${this.#base}/api/${route}`;
        const secret = key ?? this.token;
        /** @type {Record<string, string>} */
        const headers = secret ? { authorization: `Bearer ${secret}` } : {};
        if (body !== undefined) headers["content-type"] = "application/json";
        const signal = AbortSignal.timeout(1000 * this.#deadlineS);
        let response, content;
        try {
            response = await this.#fetch(url, {
                method,
                headers,
                body: body === undefined ? undefined : JSON.stringify(body),
                signal,
                redirect: "manual",
                credentials: "omit",
                cache: "no-store",
            });
            content = await bodyOf(response, url);
        } catch (error) {
            if (error instanceof MarketAwayError) throw error;
            const why = signal.aborted ? `no answer within ${this.#deadlineS} s` : messageOf(error);
            throw new MarketAwayError(`${url}: ${why}`);
        }
        if (!response.ok) throw refusal(response, content, url);
        return jsonOf(content, url);
    }

    /**
     * @template T
     * @param {unknown} answer
     * @param {(told: Record<string, unknown>) => T} read
     * @returns {T}
     */
    #read(answer, read) {
        try {
            return read(record(answer));
        } catch (error) {
            throw new MarketAwayError(
                `${this.#base} sent an answer that does not match docs/reference/market.md: ${messageOf(error)}`,
            );
        }
    }
}

/** @param {Response} response @param {string} url @returns {Promise<string>} */
async function bodyOf(response, url) {
    const decoder = new TextDecoder();
    let [content, nBytes] = ["", 0];
    if (response.body === null) return content;
    for (const reader = response.body.getReader(); ; ) {
        const { done, value } = await reader.read();
        if (done) return content + decoder.decode();
        nBytes += value.length;
        if (nBytes > ANSWER_BYTES_MOST) {
            await reader.cancel();
            throw new MarketAwayError(`${url}: more than ${ANSWER_BYTES_MOST} bytes came`);
        }
        content += decoder.decode(value, { stream: true });
    }
}

/** @param {string} content @param {string} url @returns {unknown} */
function jsonOf(content, url) {
    try {
        return JSON.parse(content);
    } catch {
        throw new MarketAwayError(`${url}: the answer is not JSON; is this a Kvasir site?`);
    }
}

/** @param {Response} response @param {string} content @param {string} url @returns {Error} */
function refusal(response, content, url) {
    const { status } = response;
    let [code, message] = ["", `${url} answers ${status || "with a redirect"}`];
    try {
        const told = record(record(JSON.parse(content)).error);
        [code, message] = [text(told.code).slice(0, 100), text(told.message).slice(0, 500)];
    } catch {
        // a proxy's own page
    }
    const words = `${message} (${[status, code].filter(Boolean).join(" ")})`;
    if (code === "quarantined") return new MarketAwayError(words, QUARANTINE_RETRY_S, code);
    const isRedirect = status === 0 || (status >= 300 && status < 400);
    if (status >= 500 || AWAY.has(status) || isRedirect) return new MarketAwayError(words, retryAfterS(response), code);
    return new MarketRefusedError(status, code, words);
}

/** @param {Response} response @returns {number} */
function retryAfterS(response) {
    const said = response.headers.get("retry-after") ?? "";
    return /^\d{1,5}$/.test(said) ? Number(said) : 0;
}

/** @param {readonly ExpertRange[]} ranges @returns {number[][]} */
function segments(ranges) {
    return ranges.map(({ layer, start, stop }) => [layer, start, stop]);
}

const CROWDED = new Set(["the budget is full", "nothing that is wanted fits into the budget"]);

/**
 * A node's credentials. `expires`: when the token ends, as an ISO 8601 text; empty for never. `accountId` and
 * `accountKey` are shown once, when the node is registered; the key only for a new account.
 * @typedef {object} NodeCredentials
 * @property {string} nodeId
 * @property {string} token
 * @property {string} expires
 * @property {string} accountId
 * @property {string} accountKey
 */

/**
 * A range that the market leases to this worker.
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
 * No work now. `isCrowded`: there is work, but it does not fit the worker's budget.
 * @typedef {object} NothingWanted
 * @property {false} isAssigned
 * @property {string} reason
 * @property {string} detail
 * @property {number} retryAfterS
 * @property {boolean} isCrowded
 */

/**
 * Read the answer to `volunteer`.
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
 * Read the answer to `demand`.
 * @param {Record<string, unknown>} told
 * @returns {import("./plan.js").Demand}
 */
export function readDemand(told) {
    const models = list(told.models);
    if (models.length !== 1) throw new TypeError(`1 model was expected, not ${models.length}`);
    const found = record(models[0]);
    return { fingerprint: text(found.fingerprint), runs: list(found.layers).flatMap(runsOf) };
}

/**
 * Read the answer to `register`.
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
 * Read a token and its expiry.
 * @param {Record<string, unknown>} told
 * @returns {{token: string, expires: string}}
 */
export function readToken(told) {
    return { token: text(told.token), expires: text(told.expires ?? "") };
}

/** Read the runs of one layer of a demand. @param {unknown} value @returns {import("./plan.js").DemandRun[]} */
function runsOf(value) {
    const layer = record(value);
    return list(layer.segments).map((item) => {
        const segment = record(item);
        const [start, stop] = list(segment.experts).map(integer);
        const range = expertRange(integer(layer.layer), start, stop);
        return { range, replicas: integer(segment.replicas), target: integer(segment.target) };
    });
}

/** @param {unknown} value @returns {Record<string, unknown>} */
export function record(value) {
    if (typeof value !== "object" || value === null || Array.isArray(value)) throw wrong("an object", value);
    return /** @type {Record<string, unknown>} */ (value);
}

/** @param {unknown} value @returns {unknown[]} */
export function list(value) {
    if (!Array.isArray(value)) throw wrong("a list", value);
    return value;
}

/** @param {unknown} value @returns {string} */
export function text(value) {
    if (typeof value !== "string") throw wrong("a text", value);
    return value;
}

/** @param {unknown} value @returns {number} */
export function number(value) {
    if (typeof value !== "number" || !Number.isFinite(value)) throw wrong("a number", value);
    return value;
}

/** @param {unknown} value @returns {number} */
export function integer(value) {
    if (typeof value !== "number" || !Number.isSafeInteger(value)) throw wrong("a whole number", value);
    return value;
}

/** @param {string} wanted @param {unknown} value @returns {TypeError} */
function wrong(wanted, value) {
    const shown = value === null ? "null" : Array.isArray(value) ? "a list" : typeof value;
    return new TypeError(`${wanted} was expected, not ${shown}`);
}
