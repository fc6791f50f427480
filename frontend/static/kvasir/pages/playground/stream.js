/**
 * An answer as it comes: server-sent events of /v1, cut into what the playground shows. `playground/api.js` calls it.
 * It knows neither keys nor the page, and runs in node as well.
 */

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
