// The playground's pure modules in node: streams cut at any byte, requests, seeds, counting of traces, the session.

import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiFailure, answerParts, failureOf } from "../../frontend/static/kvasir/pages/playground/api.js";
import {
    chosenSeed,
    DEFAULTS,
    PlaygroundSession,
    requestFor,
    textOf,
} from "../../frontend/static/kvasir/pages/playground/session.js";
import {
    largestSources,
    sharesByKind,
    sourcesOf,
    traceOf,
} from "../../frontend/static/kvasir/pages/playground/sources.js";

const CHUNK = (choice, more = {}) =>
    `data: ${JSON.stringify({ id: "chatcmpl-ab12", choices: choice ? [choice] : [], ...more })}\n\n`;
const USAGE = {
    prompt_tokens: 3,
    completion_tokens: 2,
    kvasir: { row_experts: 20, workers: 0.75, hot: 0, fallback: 0.25, flagged: false, unconfirmed: ["a", "b"] },
};
const CHAT = [
    ": 3 in line\n\n",
    ": heartbeat\n\n",
    CHUNK({ delta: { role: "assistant", content: "" }, logprobs: null, finish_reason: null }),
    CHUNK({ delta: { content: "Hé " }, logprobs: { content: [{ token: "Hé ", logprob: -0.5 }] }, finish_reason: null }),
    CHUNK({ delta: { content: "" }, logprobs: { content: [{ token: "", logprob: -1 }] }, finish_reason: null }),
    CHUNK({ delta: {}, logprobs: null, finish_reason: "stop" }),
    CHUNK(null, { usage: USAGE }),
    "data: [DONE]\n\n",
].join("");

/** A stream in pieces of some bytes. */
async function* pieces(text, size) {
    const bytes = new TextEncoder().encode(text);
    for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function collect(parts) {
    const found = [];
    for await (const part of parts) found.push(part);
    return found;
}

for (const size of [1, 2, 7, 100, 1_000_000]) {
    test(`a chat's stream in pieces of ${size} bytes`, async () => {
        const parts = await collect(answerParts(pieces(CHAT, size)));
        assert.equal(parts[0].position, 3);
        assert.deepEqual(new Set(parts.map((part) => part.requestId).filter(Boolean)), new Set(["ab12"]));
        assert.deepEqual(parts.map((part) => part.token).filter(Boolean), [
            { text: "Hé ", logprob: -0.5 },
            { text: "", logprob: -1 },
        ]);
        assert.equal(parts.find((part) => part.finishReason).finishReason, "stop");
        const usage = parts.at(-1).usage;
        assert.deepEqual(usage.shares, { worker: 0.75, hot: 0, fallback: 0.25 });
        assert.equal(usage.nUnconfirmed, 2);
    });
}

test("a completion's stream", async () => {
    const choice = { text: " a", index: 0, logprobs: { tokens: [" a"], token_logprobs: [-2] }, finish_reason: null };
    const parts = await collect(answerParts(pieces(`${CHUNK(choice)}data: [DONE]\n\n`, 9)));
    assert.deepEqual(
        parts.filter((part) => part.token),
        [{ token: { text: " a", logprob: -2 } }],
    );
});

test("a failure within a stream, and a stream that is cut", async () => {
    const error = `event: error\ndata: {"error":{"code":"backbone_lost","message":"gone"}}\n\n`;
    await assert.rejects(collect(answerParts(pieces(error, 4))), {
        name: "ApiFailure",
        code: "backbone_lost",
        message: "gone",
    });
    await assert.rejects(collect(answerParts(pieces(CHAT.slice(0, -20), 50))), { code: "stream_cut" });
});

test("a reply that is no reply of the API is a failure all the same", () => {
    assert.equal(failureOf(502, "<html>").code, "no_api");
    assert.equal(failureOf(429, '{"error":{"code":"rate_limit_exceeded","message":"m"}}', 7).retryAfterS, 7);
});

test("a model with a template gets messages, one without a growing text", () => {
    const exchanges = [
        { asked: "One day,", answer: " a cat" },
        { asked: "sat.", answer: "" },
    ];
    const settings = { ...DEFAULTS, model: "m", system: "Be brief.", topK: 5 };
    const chat = requestFor(exchanges, settings, true, 9);
    assert.equal(chat.path, "/v1/chat/completions");
    assert.deepEqual(
        chat.body.messages.map(({ role, content }) => [role, content]),
        [
            ["system", "Be brief."],
            ["user", "One day,"],
            ["assistant", " a cat"],
            ["user", "sat."],
        ],
    );
    const story = requestFor(exchanges, settings, false, 9);
    assert.deepEqual(
        [story.path, story.body.prompt, story.body.logprobs],
        ["/v1/completions", "One day, a cat sat.", 0],
    );
    assert.deepEqual([story.body.seed, story.body.top_k, story.body.stream], [9, 5, true]);
    const joined = (asked) =>
        requestFor(
            [
                { asked: "a", answer: "b" },
                { asked, answer: "" },
            ],
            settings,
            false,
            1,
        ).body.prompt;
    assert.deepEqual(["", "c", ", c", " c"].map(joined), ["a b", "a b c", "a b, c", "a b c"]);
});

test("seeds are whole numbers that JavaScript holds", () => {
    assert.equal(chosenSeed("42"), 42);
    for (const wanted of ["", "99999999999999999999", "1.5"]) {
        const seed = chosenSeed(wanted);
        assert.ok(Number.isSafeInteger(seed) && seed >= 0, wanted);
    }
    assert.notEqual(chosenSeed(""), chosenSeed(""));
});

const TRACE = {
    first_token: 4,
    layers: [0, 3],
    sources: [
        { kind: "fallback", worker: null },
        { kind: "worker", worker: "n1" },
        { kind: "worker", worker: "n2" },
        { kind: "worker", worker: "me" },
    ],
    tokens: [
        [
            [[1, 2]],
            [
                [2, 1],
                [0, 1],
            ],
        ],
        [
            [[2, 2]],
            [
                [2, 1],
                [3, 1],
            ],
        ],
    ],
};

test("a trace is counted by source, by layer and by token", () => {
    const trace = traceOf(TRACE, "me");
    assert.deepEqual(
        trace.sources.map(({ kind, worker, tone }) => [kind, worker, tone]),
        [
            ["tab", "me", 0],
            ["worker", "n2", 0],
            ["worker", "n1", 1],
            ["fallback", "", 0],
        ],
    );
    assert.deepEqual(sharesByKind(trace), { tab: 1 / 8, worker: 6 / 8, hot: 0, fallback: 1 / 8 });
    assert.deepEqual(sharesByKind(trace, 0), { tab: 0, worker: 3 / 4, hot: 0, fallback: 1 / 4 });
    const [, busiest] = sourcesOf(trace);
    assert.deepEqual([busiest.share, busiest.byLayer], [4 / 8, [2 / 4, 2 / 4]]);
    assert.deepEqual(sourcesOf(trace, 1)[0].byLayer, [0, 1 / 2]);
    const stranger = traceOf(TRACE, "");
    assert.ok(stranger.sources.every((source) => source.kind !== "tab"));
});

test("many workers become few and one that stands for the others", () => {
    const source = (kind, worker, share) => ({ kind, worker, share, tone: 0, byLayer: [share] });
    const all = [
        source("tab", "me", 0.01),
        ...[5, 4, 3, 2].map((n) => source("worker", `n${n}`, n / 20)),
        source("fallback", "", 0.29),
    ];
    assert.deepEqual(largestSources(all, 6), { shown: all, nHidden: 0 });
    const { shown, nHidden } = largestSources(all, 4);
    assert.deepEqual(
        shown.map(({ kind, worker }) => [kind, worker]),
        [
            ["tab", "me"],
            ["worker", "n5"],
            ["worker", ""],
            ["fallback", ""],
        ],
    );
    assert.equal(nHidden, 3);
    assert.ok(Math.abs(shown.reduce((sum, one) => sum + one.share, 0) - 1) < 1e-9);
});

/** An API of the test's own: `script` gives an answer's parts, and may wait for the signal. */
function session(script, trace = async () => TRACE) {
    const asked = [];
    const api = {
        ownKey: "",
        models: async () => [{ id: "m", nCtx: 64, hasChat: true }],
        async *ask(_path, body, signal) {
            asked.push(body);
            yield* script(signal);
        },
        trace,
    };
    return { asked, session: new PlaygroundSession(async () => "me", /** @type {any} */ (api)) };
}

test("a session asks, takes the answer and looks where it was computed", async () => {
    const { session: one, asked } = session(() => answerParts(pieces(CHAT, 11)));
    await one.load();
    await one.ask("Hello");
    await one.ask("Again");
    const [turn] = one.state.turns;
    assert.deepEqual(
        [turn.phase, textOf(turn.tokens), turn.requestId, turn.traceState],
        ["done", "Hé ", "ab12", "there"],
    );
    assert.equal(turn.trace.sources[0].kind, "tab");
    assert.deepEqual(
        asked[1].messages.map(({ content }) => content),
        ["Hello", "Hé ", "Again"],
    );
    one.clear();
    assert.deepEqual(one.state.turns, []);
});

test("an answer that is stopped keeps what came; one that failed is not part of what follows", async () => {
    let nAsked = 0;
    const { session: one, asked } = session(
        async function* (signal) {
            nAsked += 1;
            if (nAsked === 2) throw new ApiFailure(503, "queue_full", "full");
            yield { requestId: "ab12", token: { text: "x", logprob: null } };
            await new Promise((_, reject) =>
                signal.addEventListener("abort", () => reject(new DOMException("", "AbortError"))),
            );
        },
        async () => null,
    );
    await one.load();
    const first = one.ask("a");
    while (!one.state.turns[0].tokens.length) await new Promise(setImmediate);
    await one.ask("not now"); // one at a time
    one.stop();
    await first;
    assert.deepEqual(
        [one.state.turns.length, one.state.turns[0].phase, one.state.turns[0].traceState],
        [1, "stopped", "missing"],
    );
    await one.ask("b");
    assert.deepEqual([one.state.turns[1].phase, one.state.turns[1].failure.code], ["failed", "queue_full"]);
    const third = one.ask("c");
    while (!one.state.turns[2].tokens.length) await new Promise(setImmediate);
    one.stop();
    await third;
    assert.deepEqual(
        asked[2].messages.map(({ content }) => content),
        ["a", "x", "c"],
    );
});

test("without a model nothing is asked, and the page is told why", async () => {
    const { session: one } = session(() => []);
    one.api.models = async () => {
        throw new ApiFailure(503, "no_backbone", "none");
    };
    await one.load();
    await one.ask("a");
    assert.deepEqual([one.state.turns.length, one.state.problem.code], [0, "no_backbone"]);
});
