// A worker's questions to the market, over a fetch in memory: what is sent, what is read, what is refused. The same
// answers as in tests/unit/test_market_client.py. Started by test_worker_parts.py.

import assert from "node:assert/strict";
import { test } from "node:test";
import { MarketAwayError, MarketRefusedError } from "/static/kvasir/errors.js";
import { expertRange } from "/static/kvasir/slicing/expert_ranges.js";
import { MarketClient, QUARANTINE_RETRY_S } from "/static/kvasir/worker/agent/market_client.js";
import { hasGapBeside, surplus } from "/static/kvasir/worker/agent/plan.js";

const SITE = "https://site.test";
const PRINT = "f".repeat(64);
const MODEL = { name: "demo", fingerprint: PRINT, nLayer: 4, nExpert: 8 };
const ASSIGNED = {
    assigned: true,
    model: "demo",
    fingerprint: PRINT,
    layer: 1,
    experts: [2, 5],
    scarcity: 0.5,
    replicas: 1,
    target: 2,
    n_embd: 64,
    n_ff: 32,
    n_layer: 4,
    n_expert: 8,
    bytes: 300,
    slice_url: "/s",
    manifest_url: "/m",
    relay_url: "wss://site.test/relay",
    kernel: "kx1",
    rate_microcredits_per_row: 1500,
    lease_id: "a".repeat(16),
    lease_s: 60.0,
};
const NOT_ASSIGNED = { assigned: false, reason: "the budget is full", detail: "0 bytes", retry_after_s: 70.5 };
const SEGMENTS = [
    { experts: [0, 2], replicas: 0, target: 2, scarcity: 1.0 },
    { experts: [2, 8], replicas: 2, target: 2, scarcity: 0.0 },
];
const DEMAND = { models: [{ model: "demo", fingerprint: PRINT, layers: [{ layer: 1, segments: SEGMENTS }] }] };

const json = (value, init = {}) => new Response(JSON.stringify(value), { status: 200, ...init });
const page = (status, text, headers = {}) => new Response(text, { status, headers });

// What the client makes of an answer (JSON, a Response or an Error), and what it sent.
async function ask(question, answer) {
    const sent = [];
    const fetch = async (url, init) => {
        sent.push({ url, ...init, body: init.body === undefined ? undefined : JSON.parse(init.body) });
        if (answer instanceof Error) throw answer;
        return answer instanceof Response ? answer : json(answer);
    };
    const made = await question(new MarketClient(`${SITE}/`, "kvs-secret", { fetch }));
    return { made, sent: sent[0] };
}

async function refusal(answer) {
    try {
        await ask((market) => market.volunteer("node", 1, []), answer);
    } catch (error) {
        assert.ok(!error.message.includes("secret"));
        return error;
    }
    return assert.fail("nothing was refused");
}

test("a node registers without a token, or with its account's key", async () => {
    const told = {
        node_id: "n1",
        token: "kvs-new",
        expires: "2030-01-01T00:00:00Z",
        account_id: "a1",
        account_key: "kva-x",
    };
    const { made, sent } = await ask(
        (market) => market.register({ name: "attic", invite: "code" }),
        json(told, { status: 201 }),
    );
    assert.deepEqual(made, {
        nodeId: "n1",
        token: "kvs-new",
        expires: told.expires,
        accountId: "a1",
        accountKey: "kva-x",
    });
    assert.deepEqual(
        [sent.method, sent.url, sent.body],
        ["POST", `${SITE}/api/nodes`, { name: "attic", invite: "code" }],
    );
    assert.ok(!("authorization" in sent.headers));
    assert.deepEqual([sent.credentials, sent.redirect], ["omit", "manual"]);
    const again = await ask((market) => market.register({ name: "attic", accountKey: "kva-x" }), {
        ...told,
        account_key: null,
    });
    assert.equal(again.sent.headers.authorization, "Bearer kva-x");
    assert.deepEqual([again.made.accountKey, again.sent.body], ["", { name: "attic" }]);
});

test("a token is exchanged for another", async () => {
    const { made, sent } = await ask((market) => market.rotate(), { token: "kvs-new", expires: null });
    assert.deepEqual(made, { token: "kvs-new", expires: "" });
    assert.equal(sent.headers.authorization, "Bearer kvs-secret");
});

test("a heartbeat states everything and learns its lease", async () => {
    const beat = {
        nodeId: "n1",
        model: MODEL,
        ranges: [expertRange(0, 1, 4)],
        leases: ["b".repeat(16)],
        facts: { os: "Linux" },
    };
    const { made, sent } = await ask((market) => market.heartbeat(beat), { ok: true, lease_s: 45.0, workers: 3 });
    assert.equal(made, 45);
    assert.equal(sent.url, `${SITE}/api/expert-coverage`);
    assert.deepEqual(sent.body, {
        worker_id: "n1",
        model: PRINT,
        n_layer: 4,
        n_expert: 8,
        segments: [[0, 1, 4]],
        url: "relay:",
        leases: ["b".repeat(16)],
        leaving: false,
        os: "Linux",
    });
    const last = { nodeId: "n1", model: MODEL, ranges: [], isLeaving: true };
    const leaving = await ask((market) => market.heartbeat(last), { lease_s: 0 });
    assert.deepEqual([leaving.sent.body.leaving, leaving.sent.body.url], [true, ""]);
});

test("the demand is read as runs", async () => {
    const { made, sent } = await ask((market) => market.demand(PRINT), DEMAND);
    assert.deepEqual(
        [sent.method, sent.url, sent.body],
        ["GET", `${SITE}/api/expert-demand?model=${PRINT}`, undefined],
    );
    assert.deepEqual(made.runs, [
        { range: expertRange(1, 0, 2), replicas: 0, target: 2 },
        { range: expertRange(1, 2, 8), replicas: 2, target: 2 },
    ]);
    const spans = [
        [0, 2],
        [1, 3],
        [3, 8],
    ].map(([start, stop]) => surplus(made, expertRange(1, start, stop)));
    assert.deepEqual(spans, [-2, -2, 0]);
    assert.equal(surplus(made, expertRange(0, 0, 1)), -1); // nothing is known of it
    assert.ok(hasGapBeside(made, [expertRange(1, 1, 2)]));
    assert.ok(!hasGapBeside(made, [expertRange(1, 0, 4)]));
});

test("a volunteer says what it holds and gets a range, or hears why not", async () => {
    const { made, sent } = await ask((market) => market.volunteer("n1", 1000, [expertRange(0, 0, 4)]), ASSIGNED);
    assert.deepEqual(sent.body, { worker_id: "n1", budget_bytes: 1000, ranges: [[0, 0, 4]] });
    const range = expertRange(1, 2, 5);
    assert.deepEqual(made, {
        isAssigned: true,
        model: MODEL,
        range,
        nBytes: 300,
        kernel: "kx1",
        scarcity: 0.5,
        rateMicrocredits: 1500,
        relayUrl: "wss://site.test/relay",
        leaseId: "a".repeat(16),
    });
    for (const [reason, isCrowded] of [
        ["the budget is full", true],
        ["expert coverage at target", false],
    ]) {
        const none = await ask((market) => market.volunteer("n1", 1, []), { ...NOT_ASSIGNED, reason });
        assert.deepEqual(none.made, { isAssigned: false, reason, detail: "0 bytes", retryAfterS: 70.5, isCrowded });
    }
});

test("rewards are asked for with the node's token", async () => {
    const { made, sent } = await ask((market) => market.rewards(), { paid_row_experts: 7 });
    assert.deepEqual([made.paid_row_experts, sent.url], [7, `${SITE}/api/rewards?limit=1`]);
    assert.equal(sent.headers.authorization, "Bearer kvs-secret");
});

test("what may pass is away", async () => {
    for (const answer of [
        new TypeError("Failed to fetch"),
        page(502, "<html>proxy</html>"),
        page(302, "", { location: "https://elsewhere.test/" }),
        page(200, "<html>hello</html>"),
        json([1]),
        json(null),
        json({ assigned: true }),
        json({ ...ASSIGNED, experts: [5, 2] }),
        json({ ...ASSIGNED, relay_url: 7 }),
        json({ ...ASSIGNED, bytes: "300" }),
        json({ ...NOT_ASSIGNED, retry_after_s: "soon" }),
    ]) {
        assert.ok((await refusal(answer)) instanceof MarketAwayError);
    }
});

const error = (status, code, headers = {}) => json({ error: { code, message: "no" } }, { status, headers });

test("a site says how long to wait", async () => {
    for (const [status, code] of [
        [429, "rate_limit_exceeded"],
        [503, "redis_lost"],
        [409, "too_many_leases"],
    ]) {
        const away = await refusal(error(status, code, { "retry-after": "17" }));
        assert.ok(away instanceof MarketAwayError);
        assert.deepEqual([away.retryAfterS, away.code], [17, code]);
    }
    assert.equal((await refusal(error(429, "x", { "retry-after": "Sun, 06 Nov 1994 08:49:37 GMT" }))).retryAfterS, 0);
    const quarantined = await refusal(error(403, "quarantined"));
    assert.deepEqual([quarantined instanceof MarketAwayError, quarantined.retryAfterS], [true, QUARANTINE_RETRY_S]);
});

test("what will not pass is refused with its code", async () => {
    for (const [status, code] of [
        [401, "token_refused"],
        [403, "invite_needed"],
        [404, "unknown_model"],
    ]) {
        const refused = await refusal(error(status, code));
        assert.ok(refused instanceof MarketRefusedError);
        assert.deepEqual([refused.status, refused.code, refused.message], [status, code, `no (${status} ${code})`]);
    }
    const bare = await refusal(page(404, "not found"));
    assert.deepEqual([bare instanceof MarketRefusedError, bare.status, bare.code], [true, 404, ""]);
});

test("an answer without end is given up", async () => {
    const chunk = new Uint8Array(1024 * 1024);
    let nTaken = 0;
    const endless = new ReadableStream({
        pull(controller) {
            nTaken += 1;
            controller.enqueue(chunk);
        },
    });
    assert.match((await refusal(new Response(endless))).message, /more than 16777216 bytes came/);
    assert.ok(nTaken < 25);
});

test("a question that is not answered ends by its deadline", async () => {
    const fetch = (_url, { signal }) =>
        new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    const market = new MarketClient(SITE, "kvs-secret", { fetch, deadlineS: 0.01 });
    await assert.rejects(
        market.rotate(),
        (failure) => failure instanceof MarketAwayError && /no answer within 0.01 s/.test(failure.message),
    );
});
