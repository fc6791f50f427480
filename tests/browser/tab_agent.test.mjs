// A tab's agent with a market, slices and a relay that a test scripts: what it does, when it pauses, leaves and comes back.

import assert from "node:assert/strict";
import test from "node:test";
import {
    BrokenSliceError,
    KernelError,
    KernelLostError,
    KernelMemoryError,
    MarketAwayError,
    MarketRefusedError,
    SourceRefusedError,
    TransferError,
} from "/static/kvasir/errors.js";
import { Agent } from "/static/kvasir/worker/agent/agent.js";
import { AgentEdge } from "/static/kvasir/worker/agent/edge.js";
import { Fetcher } from "/static/kvasir/worker/agent/fetch.js";
import { AgentMemory } from "/static/kvasir/worker/agent/state.js";

const MODEL = { name: "tiny", fingerprint: "f".repeat(64), nLayer: 2, nExpert: 8 };
const RANGE = { layer: 0, start: 0, stop: 4 };
const NOTHING = {
    isAssigned: false,
    reason: "expert coverage at target",
    detail: "",
    retryAfterS: 60,
    isCrowded: false,
};
const OFFER = {
    isAssigned: true,
    model: MODEL,
    range: RANGE,
    nBytes: 1000,
    kernel: "kx1",
    scarcity: 1,
    rateMicrocredits: 2000,
    relayUrl: "ws://relay.example/relay",
    leaseId: "a".repeat(16),
};

/** Records that are kept in memory, as a RecordStore keeps them. */
class Records {
    values = new Map();
    get = async (key) => structuredClone(this.values.get(key));
    put = async (key, value) => void this.values.set(key, structuredClone(value));
    clear = async () => this.values.clear();
}

/** A market that answers what a test says; what it was told is in `beats`. */
class Market {
    token = "";
    answers = [OFFER];
    beats = [];
    registered = [];
    problem = null;

    async register(who) {
        this.check();
        this.registered.push(who);
        return {
            nodeId: "node",
            token: "kvs-token",
            expires: "",
            accountId: "account",
            accountKey: who.accountKey ? "" : "kva-key",
        };
    }

    async volunteer() {
        this.check();
        return this.answers.shift() ?? NOTHING;
    }

    async heartbeat(beat) {
        this.check();
        this.beats.push(beat);
        return 45;
    }

    check() {
        const { problem } = this;
        this.problem = null;
        if (problem !== null) throw problem;
    }
}

/** A worker at the relay, joined as soon as it runs. */
class Relay {
    static all = [];
    nBackbones = 0;
    pauses = [];
    reason = "";
    nDialled = 0;

    constructor(options) {
        this.options = options;
        this.ended = new Promise((resolve) => (this.end = resolve));
        Relay.all.push(this);
    }

    async run() {
        await null;
        if (Relay.isThere) this.options.onJoined();
        else this.options.onLost("nobody answers");
        await this.ended;
        if (this.defect) throw this.defect;
    }

    stop(reason) {
        this.reason = reason;
        this.end();
    }

    setPaused = (isPaused) => this.pauses.push(isPaused);
    dialNow = () => (this.nDialled += 1);
}

const HELD = { name: "slice.gguf", fingerprint: MODEL.fingerprint, facts: {}, nBytes: 1000, nRepaired: 0 };

/** An agent in a world that a test can look into. */
function makeAgent({ obtain = async () => HELD, load = async () => {}, memory = new AgentMemory(new Records()) } = {}) {
    Relay.all = [];
    Relay.isThere = true;
    const events = [];
    const hear = (event) => void events.push(event);
    const report = { say: hear, state: () => {}, progress: () => {} };
    const released = [];
    const store = { obtain, release: (held) => released.push(held.name), nDownloaded: 0 };
    const fetcher = new Fetcher("https://site.example", 200e6, () => store, { load, unload: () => {} });
    const market = new Market();
    const agent = new Agent(
        { roomBytes: 50e6, invite: "", name: "tab", facts: () => ({ backend: "wasm" }) },
        {
            market,
            fetcher,
            memory,
            report,
            makeEdge: (onChange) =>
                new AgentEdge((options) => new Relay(options), onChange, { handoverS: 0.2, overlapS: 0.01 }),
            makeHoldings: () => ({ nExperts: 4 }),
            clock: () => performance.now() / 1000,
            jitter: () => 0,
            wallClock: () => 1000,
        },
    );
    const until = async (isSo) => {
        while (!isSo()) await new Promise((resolve) => setTimeout(resolve, 1));
    };
    return { agent, market, memory, events, released, until };
}

const isServing =
    ({ agent, market }) =>
    () =>
        agent.state.isJoined && market.beats.at(-1)?.ranges.length > 0;

test("it registers, fetches what the market promises, serves and states it, and leaves in order", async () => {
    const world = makeAgent();
    const running = world.agent.run();
    await world.until(isServing(world));
    assert.deepEqual(world.market.registered, [{ name: "tab", invite: "", accountKey: "" }]);
    assert.equal(world.market.token, "kvs-token");
    assert.deepEqual(world.market.beats.at(-1).ranges, [RANGE]);
    assert.deepEqual(world.market.beats.at(-1).facts, { backend: "wasm" });
    assert.deepEqual(
        Relay.all.map(({ options }) => options.token),
        ["kvs-token"],
    );
    const { identity, holding } = world.memory;
    assert.deepEqual([identity.nodeId, identity.accountKey, holding.rates], ["node", "kva-key", { "0:0-4": 2000 }]);
    world.agent.stop("the test is over");
    await running;
    assert.ok(world.market.beats.at(-1).isLeaving);
    assert.equal(Relay.all[0].reason, "the test is over");
    assert.deepEqual(world.released, ["slice.gguf"]);
});

test("who comes back is the same node with the same ranges, and does not register", async () => {
    const records = new Records();
    const first = makeAgent({ memory: new AgentMemory(records) });
    const running = first.agent.run();
    await first.until(isServing(first));
    first.agent.stop("closed");
    await running;
    const again = makeAgent({ memory: await AgentMemory.load(records) });
    again.market.answers = [];
    const later = again.agent.run();
    await again.until(isServing(again));
    assert.deepEqual([again.market.registered, again.market.beats[0].nodeId], [[], "node"]);
    again.agent.stop("closed");
    await later;
});

test("a pause reaches backbones at once and the market next; resuming states everything again", async () => {
    const world = makeAgent();
    const running = world.agent.run();
    await world.until(isServing(world));
    world.agent.setPaused(true);
    assert.deepEqual(Relay.all[0].pauses.at(-1), true);
    await world.until(() => world.market.beats.at(-1).ranges.length === 0);
    world.agent.setPaused(false);
    await world.until(isServing(world));
    assert.deepEqual(Relay.all[0].pauses.at(-1), false);
    world.agent.stop("the test is over");
    await running;
});

test("a pause ends a download, which goes on afterwards", async () => {
    let nAsked = 0;
    const obtain = (_offer, _bytes, { signal }) => {
        nAsked += 1;
        if (nAsked > 1) return Promise.resolve(HELD);
        return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    };
    const world = makeAgent({ obtain });
    const running = world.agent.run();
    await world.until(() => nAsked === 1);
    world.agent.setPaused(true);
    assert.ok(!world.agent.state.isFetching);
    world.agent.setPaused(false);
    await world.until(isServing(world));
    assert.equal(nAsked, 2);
    world.agent.stop("the test is over");
    await running;
});

test("while the kernel is away backbones send nothing, and the market hears nothing of it", async () => {
    const world = makeAgent();
    const running = world.agent.run();
    await world.until(isServing(world));
    const nBeats = world.market.beats.length;
    world.agent.setComputing(false);
    world.agent.setComputing(true);
    assert.deepEqual([Relay.all[0].pauses.slice(-2), world.market.beats.length], [[true, false], nBeats]);
    world.agent.setPaused(true);
    world.agent.setComputing(false);
    world.agent.setComputing(true);
    assert.equal(Relay.all[0].pauses.at(-1), true); // still paused by the visitor
    world.agent.stop("the test is over");
    await running;
});

test("a site that is away is asked again, sooner when the tab wakes up", async () => {
    const world = makeAgent();
    world.market.problem = new MarketAwayError("nobody answers", 30);
    const running = world.agent.run();
    await world.until(() => world.events.includes("away"));
    world.agent.wake();
    await world.until(isServing(world));
    world.agent.stop("the test is over");
    await running;
});

test("a refusal ends it with a code for the page", async () => {
    const codes = { token_refused: 401, invite_needed: 403, registration_closed: 403 };
    for (const [code, status] of Object.entries(codes)) {
        const world = makeAgent();
        world.market.problem = new MarketRefusedError(status, code, "no");
        await assert.rejects(world.agent.run(), { name: "AgentEndedError", code });
    }
    const world = makeAgent();
    world.market.answers = [{ ...OFFER, kernel: "float" }];
    await assert.rejects(world.agent.run(), { code: "kernel" });
});

test("what came of a download decides what happens to its range", async () => {
    const outcomes = [
        [new TransferError("cut"), "again"],
        [new SourceRefusedError("404"), "hopeless"],
        [new BrokenSliceError("wrong bytes"), "again"],
        [new KernelMemoryError(10, 5), "no room"],
        [new KernelError("a scale is not finite"), "hopeless"],
        [new KernelLostError("the GPU is away"), "again"],
    ];
    for (const [error, outcome] of outcomes) {
        const world = makeAgent({ obtain: async () => Promise.reject(error) });
        const fetcher = world.agent.world.fetcher;
        fetcher.useToken("kvs-token");
        const piece = { range: RANGE, nBytes: 1, kernel: "kx1", leaseId: "", isFetched: false };
        assert.equal((await fetcher.fetch(MODEL.fingerprint, piece, 0, {})).outcome, outcome, error.name);
    }
    const world = makeAgent({ load: async () => Promise.reject(new KernelMemoryError(10, 5)) });
    world.agent.world.fetcher.useToken("kvs-token");
    await world.agent.world.fetcher.fetch(MODEL.fingerprint, { range: RANGE }, 0, {});
    assert.deepEqual(world.released, ["slice.gguf"]); // it may be evicted
});

test("a defect of a download ends the agent instead of looking like one that goes on", async () => {
    const world = makeAgent({ obtain: async () => Promise.reject(new TypeError("a defect")) });
    await assert.rejects(world.agent.run(), /a defect/);
});

test("other holdings take over at the relay before the old edges say goodbye", async () => {
    Relay.all = [];
    Relay.isThere = true;
    const edge = new AgentEdge(
        (options) => new Relay(options),
        () => {},
        { handoverS: 0.2, overlapS: 0.01 },
    );
    assert.ok(await edge.serve({}, "ws://relay", "token"));
    assert.ok(await edge.serve({}, "ws://relay", "token"));
    const [old, next] = Relay.all;
    assert.deepEqual([old.reason, next.reason], ["", ""]);
    await edge.othersGone();
    assert.deepEqual([old.reason, next.reason], ["this worker serves other experts now", ""]);
    Relay.isThere = false;
    assert.ok(!(await edge.serve({}, "ws://relay", "token"))); // the relay is away: the old ones serve on
    assert.deepEqual([next.reason, Relay.all[2].reason], ["", "the relay did not take the new edges"]);
    await edge.stop("the end");
    assert.equal(next.reason, "the end");
});

test("a session that fails is no session, and one that is opening is stopped too", async () => {
    Relay.all = [];
    Relay.isThere = true;
    const heard = [];
    const edge = new AgentEdge(
        (options) => new Relay(options),
        (isJoined) => heard.push(isJoined),
        { handoverS: 5 },
    );
    await edge.serve({}, "ws://relay", "token");
    Relay.all[0].defect = new TypeError("a defect");
    Relay.all[0].end();
    await Relay.all[0].ended;
    await new Promise((resolve) => setTimeout(resolve));
    assert.deepEqual([edge.isServing, heard.at(-1)], [false, false]);
    Relay.isThere = false;
    const opening = edge.serve({}, "ws://relay", "token");
    await edge.stop("the end");
    assert.equal(await opening, false);
    assert.equal(Relay.all[1].reason, "the end");
});
