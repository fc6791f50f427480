/**
 * A worker's requests to the market: register, heartbeat, demand, volunteer, rewards (docs/reference/market.md).
 * Twin of kvasir/worker/agent/market_client.py. The agent asks. Every call ends within a deadline. What may succeed later is
 * a MarketAwayError, what will not a MarketRefusedError; an answer that is not what the document says counts as away.
 * Tokens and keys are never logged or shown.
 */

import { messageOf } from "../../wire/errors.js";
import { number, record, text } from "../tab/json_values.js";
import { readAssignment, readCredentials, readDemand, readToken } from "./market_answers.js";
import { MarketAwayError, MarketRefusedError } from "./market_errors.js";

export { MarketAwayError, MarketRefusedError };

/** @typedef {import("../../slicing/expert_ranges.js").ExpertRange} ExpertRange */
/** @typedef {import("./plan_state.js").SiteModel} SiteModel */
/** @typedef {import("./demand.js").Demand} Demand */
/** @typedef {import("./market_answers.js").Assigned} Assigned */
/** @typedef {import("./market_answers.js").NothingWanted} NothingWanted */
/** @typedef {import("./market_answers.js").NodeCredentials} NodeCredentials */

/** Of one question, all in all. */
const DEADLINE_S = 30;
/** A demand in which every expert of a large model is a run of its own. */
const ANSWER_BYTES_MOST = 16 * 1024 * 1024;
export const QUARANTINE_RETRY_S = 600;
const AWAY = new Set([408, 409, 425, 429]);

/**
 * What a worker says of itself. `facts`: what docs/reference/market.md calls optional, by its names there.
 * @typedef {object} Heartbeat
 * @property {string} nodeId
 * @property {SiteModel} model
 * @property {readonly ExpertRange[]} ranges
 * @property {readonly string[]} [leases]
 * @property {Readonly<Record<string, string | number>>} [facts]
 * @property {boolean} [isLeaving]
 */

/** One site, with this node's token once it has one. */
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
     * Become a node; with an account's key, one of that account.
     * @param {{name: string, invite?: string, accountKey?: string}} who
     * @returns {Promise<NodeCredentials>}
     * @throws {MarketRefusedError} where that needs an invite or an operator
     */
    async register({ name, invite = "", accountKey = "" }) {
        const answer = await this.#ask("POST", "nodes", invite ? { name, invite } : { name }, accountKey);
        return this.#read(answer, readCredentials);
    }

    /**
     * A new token for this node; the old one counts no more.
     * @returns {Promise<{token: string, expires: string}>}
     */
    async rotate() {
        const answer = await this.#ask("POST", "nodes/rotate", {});
        return this.#read(answer, readToken);
    }

    /**
     * State what is held.
     * @param {Heartbeat} beat
     * @returns {Promise<number>} how long that counts, in seconds
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
     * What is wanted of this model.
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
     * @param {number} roomBytes for all experts, those of `ranges`, which are held, included
     * @param {readonly ExpertRange[]} ranges
     * @returns {Promise<Assigned | NothingWanted>}
     */
    async volunteer(nodeId, roomBytes, ranges) {
        const body = { worker_id: nodeId, budget_bytes: roomBytes, ranges: segments(ranges) };
        return this.#read(await this.#ask("POST", "expert-volunteer", body), readAssignment);
    }

    /**
     * What this node earned (docs/reference/rewards.md), as the site writes it.
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
                `${this.#base} answers what is not in docs/reference/market.md: ${messageOf(error)}`,
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
        throw new MarketAwayError(`${url}: the answer is no JSON; is this a Kvasir site?`);
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
