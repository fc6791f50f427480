/**
 * The playground's side of /v1: keys, models, answers, traces. `playground/session.js` calls it; nothing is drawn here.
 * A visitor's key is fetched when it is needed and kept until it ends; a key of one's own stays in this tab alone.
 */

import { ApiFailure, answerParts, failureOf } from "./stream.js";

/** @typedef {import("./stream.js").AnswerPart} AnswerPart */
/** @typedef {import("./sources.js").TraceReply} TraceReply */

/**
 * @typedef {object} ModelFacts
 * @property {string} id
 * @property {number} nCtx  tokens of prompt and answer
 * @property {boolean} hasChat
 */

const GUEST = "kvasir-guest-key";
const OWN = "kvasir-own-key";
const LEAST_LEFT_MS = 60_000; // of a visitor's key, so that it does not end under way
const TRACE_TRIES_MS = [300, 700, 1500, 3000]; // before each try

export class PlaygroundApi {
    /** @returns {string} "" while the visitor has entered none */
    get ownKey() {
        return sessionStorage.getItem(OWN) ?? "";
    }

    /** @param {string} key */
    set ownKey(key) {
        if (key) sessionStorage.setItem(OWN, key);
        else sessionStorage.removeItem(OWN);
    }

    /** Models that are served now. Throws ApiFailure. @returns {Promise<ModelFacts[]>} */
    async models() {
        const reply = await this.json("/v1/models");
        return reply.data.map((/** @type {any} */ model) => ({
            id: model.id,
            nCtx: model.kvasir.n_ctx,
            hasChat: model.kvasir.chat,
        }));
    }

    /**
     * Ask, and give the answer's parts as they come. Throws ApiFailure, and AbortError after `signal`.
     * @param {"/v1/chat/completions" | "/v1/completions"} path
     * @param {object} body
     * @param {AbortSignal} signal
     * @returns {AsyncGenerator<AnswerPart>}
     */
    async *ask(path, body, signal) {
        const response = await this.fetch(path, {
            method: "POST",
            body: JSON.stringify(body),
            headers: { "Content-Type": "application/json" },
            signal,
        });
        if (!response.body) throw new ApiFailure(0, "stream_cut", "the answer has no body");
        yield* answerParts(chunksOf(response.body));
    }

    /**
     * Where an answer's last tokens were computed; null when nobody knows (any more). Throws ApiFailure.
     * @param {string} requestId
     * @param {boolean} hasEnded  false: it was cancelled just now, so its record comes a moment later
     * @returns {Promise<TraceReply | null>}
     */
    async trace(requestId, hasEnded) {
        for (const waitMs of hasEnded ? [0, ...TRACE_TRIES_MS] : TRACE_TRIES_MS) {
            await new Promise((resolve) => setTimeout(resolve, waitMs));
            try {
                return await this.json(`/v1/requests/${requestId}/trace`);
            } catch (error) {
                if (!(error instanceof ApiFailure) || error.status !== 404) throw error;
                if (error.code === "trace_not_found") return null;
            }
        }
        return null;
    }

    /** @param {string} path @returns {Promise<any>} */
    async json(path) {
        return (await this.fetch(path, {})).json();
    }

    /**
     * With a key; a visitor's that counts no more is replaced once.
     * @param {string} path
     * @param {RequestInit} options
     */
    async fetch(path, options) {
        try {
            return await fetchWith(await this.key(), path, options);
        } catch (error) {
            if (!(error instanceof ApiFailure) || error.code !== "invalid_api_key" || this.ownKey) throw error;
            localStorage.removeItem(GUEST);
            return fetchWith(await this.key(), path, options);
        }
    }

    /** The key to ask with. Throws ApiFailure, `playground_off` where visitors get none. */
    async key() {
        if (this.ownKey) return this.ownKey;
        const kept = JSON.parse(localStorage.getItem(GUEST) ?? "null");
        if (kept && kept.expires * 1000 > Date.now() + LEAST_LEFT_MS) return String(kept.key);
        const response = await fetchWith("", "/v1/playground/key", { method: "POST", body: "{}" });
        const { key, expires } = await response.json();
        localStorage.setItem(GUEST, JSON.stringify({ key, expires }));
        return String(key);
    }
}

/**
 * @param {string} key
 * @param {string} path
 * @param {RequestInit} options
 */
async function fetchWith(key, path, options) {
    const headers = new Headers(options.headers);
    if (key) headers.set("Authorization", `Bearer ${key}`);
    let response;
    try {
        response = await fetch(path, { ...options, headers });
    } catch (error) {
        if (error instanceof DOMException && error.name === "AbortError") throw error;
        throw new ApiFailure(0, "site_away", "the site cannot be reached");
    }
    if (response.ok) return response;
    throw failureOf(response.status, await response.text(), Number(response.headers.get("Retry-After")) || 0);
}

/** A body piece by piece: not every browser can iterate one. @param {ReadableStream<Uint8Array>} body */
async function* chunksOf(body) {
    const reader = body.getReader();
    try {
        while (true) {
            const { done, value } = await reader.read();
            if (done) return;
            yield value;
        }
    } finally {
        reader.cancel().catch(() => undefined); // it may have failed already
    }
}
