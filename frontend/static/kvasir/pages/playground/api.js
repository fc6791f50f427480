/**
 * The playground's side of /v1: keys, models, answers, traces. `playground/session.js` calls it; nothing is drawn here.
 * A visitor's key is fetched when it is needed and kept until it ends; a key of one's own stays in this tab alone.
 */

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

/**
 * @typedef {object} ServerEvent  One block of a stream; a comment has no data.
 * @property {string} event  "" when it has no name
 * @property {string} data
 * @property {string} comment
 */

/**
 * @typedef {object} AnswerPart  What one event of an answer says; only what changed is there.
 * @property {string} [requestId]  32 hex digits
 * @property {number} [position]  in line, 1 is next
 * @property {{text: string, logprob: number | null}} [token]
 * @property {string} [finishReason]
 * @property {SwarmUsage} [usage]
 */

/**
 * @typedef {object} SwarmUsage
 * @property {number} nPromptTokens
 * @property {number} nTokens
 * @property {number} nRowExperts
 * @property {{worker: number, hot: number, fallback: number}} shares  together 1
 * @property {boolean} isFlagged
 * @property {number} nUnconfirmed  workers whose answers nobody had checked yet
 */

/** What the API refused, or reported within a stream. */
export class ApiFailure extends Error {
    /**
     * @param {number} status  0: it came within a stream
     * @param {string} code  as in docs/use/api.md
     * @param {string} message
     * @param {number} [retryAfterS]
     */
    constructor(status, code, message, retryAfterS = 0) {
        super(message);
        this.name = "ApiFailure";
        this.status = status;
        this.code = code;
        this.retryAfterS = retryAfterS;
    }
}

/**
 * The failure in a reply's body, whatever it is.
 * @param {number} status
 * @param {string} text
 * @param {number} [retryAfterS]
 */
export function failureOf(status, text, retryAfterS = 0) {
    try {
        const { code, message } = JSON.parse(text).error;
        return new ApiFailure(status, String(code), String(message), retryAfterS);
    } catch {
        return new ApiFailure(status, "no_api", `the server answered ${status} without saying why`, retryAfterS);
    }
}

/**
 * The blocks of a stream, as they become whole.
 * @param {AsyncIterable<Uint8Array>} chunks
 * @returns {AsyncGenerator<ServerEvent>}
 */
export async function* serverEvents(chunks) {
    const decoder = new TextDecoder();
    let rest = "";
    for await (const chunk of chunks) {
        rest += decoder.decode(chunk, { stream: true });
        const blocks = rest.split("\n\n");
        rest = blocks.pop() ?? "";
        for (const block of blocks) yield parseBlock(block);
    }
}

/** @param {string} block @returns {ServerEvent} */
function parseBlock(block) {
    const found = { event: "", data: "", comment: "" };
    for (const line of block.split("\n")) {
        const colon = line.indexOf(":");
        const value = line.slice(colon + 1).replace(/^ /, "");
        if (colon === 0) found.comment = value;
        else if (line.startsWith("event:")) found.event = value;
        else if (line.startsWith("data:")) found.data += value;
    }
    return found;
}

/**
 * What an answer's stream says, to its end. Throws ApiFailure for a failure in it, and when it ends before it should.
 * @param {AsyncIterable<Uint8Array>} chunks
 * @returns {AsyncGenerator<AnswerPart>}
 */
export async function* answerParts(chunks) {
    for await (const { event, data, comment } of serverEvents(chunks)) {
        if (event === "error") throw failureOf(0, data);
        if (data === "[DONE]") return;
        const place = /^(\d+) in line$/.exec(comment);
        if (place) yield { position: Number(place[1]) };
        if (data) yield* chunkParts(JSON.parse(data));
    }
    throw new ApiFailure(0, "stream_cut", "the answer ended before it was complete");
}

/** One chunk of a chat or of a completion. @param {any} chunk @returns {Generator<AnswerPart>} */
function* chunkParts(chunk) {
    yield { requestId: String(chunk.id).replace(/^[a-z]+-/, "") };
    for (const choice of chunk.choices) {
        const logprob = choice.logprobs?.content?.[0]?.logprob ?? choice.logprobs?.token_logprobs?.[0] ?? null;
        // Log-probabilities come with every token, also with those that show no text yet.
        if (choice.logprobs) yield { token: { text: choice.delta?.content ?? choice.text ?? "", logprob } };
        if (choice.finish_reason) yield { finishReason: choice.finish_reason };
    }
    if (chunk.usage) yield { usage: usageOf(chunk.usage) };
}

/** @param {any} usage @returns {SwarmUsage} */
function usageOf(usage) {
    const { kvasir } = usage;
    return {
        nPromptTokens: usage.prompt_tokens,
        nTokens: usage.completion_tokens,
        nRowExperts: kvasir.row_experts,
        shares: { worker: kvasir.workers, hot: kvasir.hot, fallback: kvasir.fallback },
        isFlagged: kvasir.flagged,
        nUnconfirmed: kvasir.unconfirmed.length,
    };
}
