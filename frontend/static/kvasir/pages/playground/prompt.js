/**
 * From a conversation and the chosen settings to the body of a request. Pure; `playground/session.js` asks for it.
 * A model with a chat template gets messages; one without goes on from one growing text.
 */

/**
 * @typedef {object} Settings
 * @property {string} model
 * @property {number} temperature
 * @property {number} topP
 * @property {number} topK  0: off
 * @property {number} repetitionPenalty  1: off
 * @property {number} maxTokens
 * @property {string} seed  "": another one for each answer
 * @property {string} system  what the model is told first; chats only
 */

/** @typedef {{asked: string, answer: string}} Exchange */

/** @type {Readonly<Settings>} */
export const DEFAULTS = Object.freeze({
    model: "",
    temperature: 0.7,
    topP: 0.95,
    topK: 0,
    repetitionPenalty: 1,
    maxTokens: 160,
    seed: "",
    system: "",
});

/**
 * What to send where. `exchanges` ends with the one that is to be answered.
 * @param {readonly Exchange[]} exchanges
 * @param {Settings} settings
 * @param {boolean} hasChat
 * @param {number} seed
 * @returns {{path: "/v1/chat/completions" | "/v1/completions", body: Record<string, unknown>}}
 */
export function requestFor(exchanges, settings, hasChat, seed) {
    const shared = {
        model: settings.model,
        temperature: settings.temperature,
        top_p: settings.topP,
        top_k: settings.topK,
        repetition_penalty: settings.repetitionPenalty,
        max_tokens: settings.maxTokens,
        seed,
        stream: true,
        stream_options: { include_usage: true },
    };
    if (hasChat) {
        const messages = messagesOf(exchanges, settings.system);
        return { path: "/v1/chat/completions", body: { ...shared, messages, logprobs: true } };
    }
    return { path: "/v1/completions", body: { ...shared, prompt: storyOf(exchanges), logprobs: 0 } };
}

/** @param {readonly Exchange[]} exchanges @param {string} system */
function messagesOf(exchanges, system) {
    const messages = system.trim() ? [{ role: "system", content: system }] : [];
    for (const { asked, answer } of exchanges) {
        messages.push({ role: "user", content: asked });
        if (answer) messages.push({ role: "assistant", content: answer });
    }
    return messages;
}

/** Everything that was written so far, by both. @param {readonly Exchange[]} exchanges */
function storyOf(exchanges) {
    return exchanges.flatMap(({ asked, answer }) => [asked, answer]).reduce(joined, "");
}

/** @param {string} before @param {string} text */
function joined(before, text) {
    return before && text && !/\s$/.test(before) && !/^[\s.,;:!?'")\]]/.test(text)
        ? `${before} ${text}`
        : before + text;
}

/** A seed that JavaScript holds exactly. @param {string} wanted digits, or "" for a random one */
export function chosenSeed(wanted) {
    const digits = wanted.trim();
    if (/^\d+$/.test(digits) && Number.isSafeInteger(Number(digits))) return Number(digits);
    const [high, low] = crypto.getRandomValues(new Uint32Array(2));
    return (high & 0xffff) * 2 ** 32 + low;
}
