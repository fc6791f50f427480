/**
 * The conversation of one playground: what was asked, what came back, what runs. `playground/page.js` draws its state.
 * One answer at a time. It draws nothing and knows no element of the page.
 */

import { ApiFailure, PlaygroundApi } from "./api.js";
import { traceOf } from "./sources.js";

/** @typedef {import("./api.js").ModelFacts} ModelFacts */
/** @typedef {import("./sources.js").Trace} Trace */
/** @typedef {import("./api.js").SwarmUsage} SwarmUsage */

/**
 * @typedef {object} Turn  Something asked and its answer. Times are of performance.now(); 0: not yet.
 * @property {number} id
 * @property {string} asked
 * @property {number} seed
 * @property {"waiting" | "streaming" | "done" | "stopped" | "failed"} phase
 * @property {number} position  in line; 0: not in line
 * @property {{text: string, logprob: number | null}[]} tokens
 * @property {string} requestId
 * @property {string} finishReason
 * @property {SwarmUsage | null} usage
 * @property {Trace | null} trace
 * @property {"none" | "loading" | "there" | "missing"} traceState
 * @property {ApiFailure | null} failure
 * @property {number} startedAt
 * @property {number} firstAt
 * @property {number} endedAt
 */

/**
 * @typedef {object} PlaygroundState
 * @property {readonly ModelFacts[]} models
 * @property {ApiFailure | null} problem  why there are no models, or no key
 * @property {Settings} settings
 * @property {boolean} hasOwnKey
 * @property {readonly Turn[]} turns
 */

export class PlaygroundSession {
    /**
     * @param {() => Promise<string>} ownNodeId  the node that this browser is, "" when it is none
     * @param {PlaygroundApi} [api]
     */
    constructor(ownNodeId, api = new PlaygroundApi()) {
        this.api = api;
        this.ownNodeId = ownNodeId;
        /** @type {PlaygroundState} */
        this.state = { models: [], problem: null, settings: DEFAULTS, hasOwnKey: api.ownKey !== "", turns: [] };
        /** @type {Set<(state: PlaygroundState) => void>} */
        this.listeners = new Set();
        /** @type {AbortController | null} */
        this.running = null;
        this.nTurns = 0;
    }

    /** @param {(state: PlaygroundState) => void} listener @returns {() => void} ends it */
    subscribe(listener) {
        this.listeners.add(listener);
        return () => void this.listeners.delete(listener);
    }

    /** The model that answers, if there is one. @returns {ModelFacts | undefined} */
    get model() {
        return this.state.models.find((model) => model.id === this.state.settings.model);
    }

    /** Look which models are there. */
    async load() {
        try {
            const models = await this.api.models();
            const chosen = models.find((model) => model.id === this.state.settings.model) ?? models[0];
            this.set({ models, problem: null });
            if (chosen) this.choose({ model: chosen.id });
        } catch (error) {
            this.set({ models: [], problem: failureFrom(error) });
        }
    }

    /** @param {Partial<Settings>} settings */
    choose(settings) {
        this.set({ settings: { ...this.state.settings, ...settings } });
    }

    /** Ask with a key of one's own, or as a visitor with "". @param {string} key */
    async useKey(key) {
        this.api.ownKey = key.trim();
        this.set({ hasOwnKey: this.api.ownKey !== "" });
        await this.load();
    }

    /** Forget the conversation. */
    clear() {
        this.stop();
        this.set({ turns: [] });
    }

    /** End the answer that is under way; what came stays. */
    stop() {
        this.running?.abort();
    }

    /** Ask, and take the answer until it ends. @param {string} asked */
    async ask(asked) {
        const model = this.model;
        if (this.running || !model) return;
        const turn = this.newTurn(asked);
        const answered = this.state.turns.filter((one) => one.phase !== "failed" || one.tokens.length);
        const exchanges = [...answered, turn].map(({ asked, tokens }) => ({ asked, answer: textOf(tokens) }));
        this.set({ turns: [...this.state.turns, turn] });
        const running = new AbortController();
        this.running = running;
        const { path, body } = requestFor(exchanges, this.state.settings, model.hasChat, turn.seed);
        try {
            for await (const part of this.api.ask(path, body, running.signal)) this.take(turn, part);
            turn.phase = "done";
        } catch (error) {
            turn.phase = running.signal.aborted ? "stopped" : "failed";
            turn.failure = running.signal.aborted ? null : failureFrom(error);
        }
        turn.endedAt = performance.now();
        this.running = null;
        turn.traceState = turn.requestId && turn.tokens.length ? "loading" : "none";
        this.changed(turn);
        if (turn.traceState === "loading") await this.loadTrace(turn);
    }

    /** @param {string} asked @returns {Turn} */
    newTurn(asked) {
        this.nTurns += 1;
        return {
            id: this.nTurns,
            asked,
            seed: chosenSeed(this.state.settings.seed),
            phase: "waiting",
            position: 0,
            tokens: [],
            requestId: "",
            finishReason: "",
            usage: null,
            trace: null,
            traceState: "none",
            failure: null,
            startedAt: performance.now(),
            firstAt: 0,
            endedAt: 0,
        };
    }

    /** @param {Turn} turn @param {import("./api.js").AnswerPart} part */
    take(turn, part) {
        if (part.requestId) turn.requestId = part.requestId;
        if (part.position) turn.position = part.position;
        if (part.finishReason) turn.finishReason = part.finishReason;
        if (part.usage) turn.usage = part.usage;
        if (part.token) {
            if (!turn.firstAt) turn.firstAt = performance.now();
            turn.phase = "streaming";
            turn.tokens.push(part.token);
        }
        this.changed(turn);
    }

    /** @param {Turn} turn */
    async loadTrace(turn) {
        try {
            const [reply, nodeId] = await Promise.all([
                this.api.trace(turn.requestId, turn.phase === "done"),
                this.ownNodeId(),
            ]);
            turn.trace = reply && traceOf(reply, nodeId);
        } catch {
            turn.trace = null; // the answer is there all the same
        }
        turn.traceState = turn.trace ? "there" : "missing";
        this.changed(turn);
    }

    /** A turn has changed; one that was cleared away is of no interest. @param {Turn} turn */
    changed(turn) {
        this.set({ turns: this.state.turns.map((one) => (one.id === turn.id ? { ...turn } : one)) });
    }

    /** @param {Partial<PlaygroundState>} change */
    set(change) {
        this.state = { ...this.state, ...change };
        for (const listener of this.listeners) listener(this.state);
    }
}

/** The answer's text. @param {readonly {text: string}[]} tokens */
export function textOf(tokens) {
    return tokens.map((token) => token.text).join("");
}

/** @param {unknown} error @returns {ApiFailure} */
function failureFrom(error) {
    return error instanceof ApiFailure ? error : new ApiFailure(0, "defect", String(error));
}

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
