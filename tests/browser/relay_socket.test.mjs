// The relay client against relays that misbehave: whatever they say, it ends with a reason and never hangs.
// Started by test_wire_parts.py.

import assert from "node:assert/strict";
import { test } from "node:test";
import { KEEP_ALIVE } from "/static/kvasir/edge/signs_of_life.js";
import { EdgeError, EdgeTimeout, HandshakeRefused } from "/static/kvasir/errors.js";
import { RelaySocket } from "/static/kvasir/relay/socket.js";
import { FaultCode, fault, goaway, hello, ping, pong, RefuseCode, Role, refuse } from "/static/kvasir/wire/frames.js";
import { Kind, PROTOCOL_LIMITS } from "/static/kvasir/wire/header.js";
import { backboneHello, KERNEL, MODEL, ScriptedOutside, settle } from "./scripted_relay.mjs";

const URL_ = "wss://relay.test/relay";
const HELLO = hello({
    role: Role.WORKER,
    modelFingerprint: MODEL,
    kernelFingerprint: KERNEL,
    kernel: "kx1",
    token: "kvs-x",
});
const MIB = 1024 * 1024;

// Edges that opened, each with an owner that keeps what it is told.
function listener() {
    const edges = [];
    const onEdge = (link) => {
        const edge = { link, frames: [], refused: [], nOut: 0, closed: null };
        link.owner = {
            frameReceived: (frame) => edge.frames.push(frame),
            bytesRefused: (error) => edge.refused.push(error.message),
            bytesWentOut: () => (edge.nOut += 1),
            linkClosed: (reason) => (edge.closed = reason),
        };
        edges.push(edge);
    };
    return { edges, onEdge };
}

function dial(outside, changes = {}) {
    const { edges, onEdge } = listener();
    const options = { url: URL_, hello: HELLO, onEdge, deadlineS: 15, outside, ...changes };
    const connecting = RelaySocket.connect(options);
    connecting.catch(() => undefined);
    return { edges, connecting };
}

async function joined(outside, changes) {
    const { edges, connecting } = dial(outside, changes);
    await settle();
    outside.socket.greet();
    return { edges, relay: await connecting, socket: outside.socket };
}

test("it says hello with its token, and takes the relay's credit", async () => {
    const outside = new ScriptedOutside();
    const { relay, socket } = await joined(outside);
    assert.equal(socket.url, URL_);
    assert.equal(socket.binaryType, "arraybuffer");
    assert.equal(socket.opening.role, Role.WORKER);
    assert.deepEqual(socket.opening.hello, HELLO);
    assert.equal(relay.welcome.limits.maxInflightBytes, 16 * MIB);
});

const OPENINGS = {
    "a refusal": [
        (s) => s.say(0, refuse(RefuseCode.MODEL, "yours and mine")),
        HandshakeRefused,
        /refused \(MODEL\): yours/,
    ],
    garbage: [
        (s) => s.sayBytes(Uint8Array.from([1, 2, 3])),
        EdgeError,
        /does not speak this protocol: .* head of a record/,
    ],
    text: [(s) => s.onmessage({ data: "hello" }), EdgeError, /does not speak this protocol: a text message/],
    "a frame out of place": [(s) => s.say(0, fault(1, FaultCode.BUSY, "")), EdgeError, /is not expected/],
    "a close": [(s) => s.hangUp(1013, "later"), EdgeError, /cannot be reached: socket closed \(1013: later\)/],
};

for (const [what, [act, kind, reason]] of Object.entries(OPENINGS)) {
    test(`an opening that meets ${what} fails and says why`, async () => {
        const outside = new ScriptedOutside();
        const { connecting } = dial(outside);
        outside.socket.onopen({});
        act(outside.socket);
        await assert.rejects(connecting, (error) => error instanceof kind && reason.test(error.message));
        await settle();
        assert.ok(outside.socket.isClosed);
        assert.deepEqual(outside.timers, []);
    });
}

test("a relay that says nothing is aborted, and so is an opening that nobody wants any more", async () => {
    const outside = new ScriptedOutside();
    const { connecting } = dial(outside);
    await outside.pass(15);
    await assert.rejects(connecting, EdgeTimeout);
    const stopping = new AbortController();
    const again = dial(outside, { signal: stopping.signal });
    stopping.abort();
    await assert.rejects(again.connecting, /aborted/);
    const late = dial(outside, { signal: stopping.signal });
    await assert.rejects(late.connecting, /aborted/);
    assert.equal(outside.sockets.length, 2);
});

test("an address that is none, or holds a secret, is not dialled", async () => {
    const outside = new ScriptedOutside();
    for (const url of ["https://relay.test/relay", "nonsense", "wss://a:b@relay.test/", "wss://relay.test/?token=x"]) {
        await assert.rejects(dial(outside, { url }).connecting, EdgeError);
    }
    assert.equal(outside.sockets.length, 0);
    await assert.rejects(dial(outside, { hello: { ...HELLO, token: "two\nlines" } }).connecting, /control characters/);
});

test("edges open with a hello, are told apart, and end one by one", async () => {
    const { edges, socket } = await joined(new ScriptedOutside());
    socket.say(7, ping(1)); // of an edge that is not open: dropped
    socket.say(7, backboneHello({ name: "seven" }));
    socket.say(8, backboneHello({ name: "eight" }));
    socket.say(8, ping(5));
    assert.deepEqual(
        edges.map(({ link }) => link.number),
        [7, 8],
    );
    assert.deepEqual(
        edges.map(({ frames }) => frames.map(({ kind }) => kind)),
        [[Kind.HELLO], [Kind.HELLO, Kind.PING]],
    );
    socket.say(7, fault(0, FaultCode.GONE, "backbone gone"));
    await settle();
    assert.equal(edges[0].closed, "the edge ended (GONE): backbone gone");
    assert.equal(edges[1].closed, null);
    socket.say(7, ping(2));
    assert.equal(edges[0].frames.length, 1);
    edges[1].link.close("done");
    await settle();
    assert.deepEqual(socket.on(8), [fault(0, FaultCode.PROTOCOL, "done")]);
    assert.deepEqual(socket.on(7), []);
    assert.throws(() => edges[1].link.send(pong(1), PROTOCOL_LIMITS), EdgeError);
});

test("bytes of an edge that are no frame end that edge alone", async () => {
    const { edges, socket } = await joined(new ScriptedOutside());
    socket.say(7, backboneHello());
    const bad = new Uint8Array(8 + 40);
    new DataView(bad.buffer).setUint32(0, 7, true);
    new DataView(bad.buffer).setUint32(4, 40, true);
    socket.sayBytes(bad);
    assert.match(edges[0].refused[0], /"KVSR" is needed/);
    assert.ok(!socket.isClosed);
});

test("what is said in one moment leaves in one message, and a bundle is bounded", async () => {
    const { edges, socket } = await joined(new ScriptedOutside());
    socket.say(7, backboneHello());
    const [{ link }] = edges;
    for (let n = 1; n <= 10; n++) link.send(pong(n), PROTOCOL_LIMITS);
    await settle();
    assert.equal(socket.messages.length, 2);
    assert.deepEqual(
        socket.on(7).map((frame) => frame.number),
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    );
    assert.equal(link.queuedBytes, 0);
    const half = 3 * 43687; // values, with which a record has half a MiB
    const large = {
        kind: Kind.RESULT,
        request: 1,
        layer: 0,
        nPairs: 3,
        dModel: 43687,
        outputs: new Float32Array(half),
    };
    for (let n = 0; n < 5; n++) link.send(large, PROTOCOL_LIMITS);
    link.send({ ...large, nPairs: 43687, dModel: 3 }, PROTOCOL_LIMITS);
    link.send(pong(11), PROTOCOL_LIMITS);
    await settle();
    assert.deepEqual(
        socket.messages.slice(2).map(({ length }) => length),
        [MIB, MIB, MIB, 44],
    );
});

test("a frame that is larger than a bundle leaves alone", async () => {
    const { edges, socket } = await joined(new ScriptedOutside());
    socket.say(7, backboneHello());
    const outputs = new Float32Array(1024 * 300);
    const large = { kind: Kind.RESULT, request: 1, layer: 0, nPairs: 300, dModel: 1024, outputs };
    for (const frame of [pong(1), large, pong(2)]) edges[0].link.send(frame, PROTOCOL_LIMITS);
    await settle();
    assert.deepEqual(
        socket.messages.slice(1).map(({ length }) => length),
        [44, 44 + outputs.byteLength, 44],
    );
});

test("nothing leaves after the end", async () => {
    const outside = new ScriptedOutside();
    const { edges, relay, socket } = await joined(outside);
    socket.say(7, backboneHello());
    socket.bufferedAmount = MIB;
    edges[0].link.send(pong(1), PROTOCOL_LIMITS);
    await settle();
    socket.hangUp();
    socket.bufferedAmount = 0;
    relay.post(null, [new Uint8Array(44)], 52);
    await outside.pass(2);
    assert.equal(socket.messages.length, 1);
    await relay.close("again");
});

test("a slow line holds frames back, where their owner counts them, and goes on when it drains", async () => {
    const outside = new ScriptedOutside();
    const { edges, relay, socket } = await joined(outside);
    socket.say(7, backboneHello());
    const [{ link }] = edges;
    socket.bufferedAmount = MIB;
    link.send(pong(1), PROTOCOL_LIMITS);
    await outside.pass(2);
    assert.equal(link.queuedBytes, 44);
    assert.equal(socket.messages.length, 1);
    socket.bufferedAmount = MIB - 1;
    await outside.pass(0.01);
    assert.equal(link.queuedBytes, 0);
    assert.deepEqual(socket.on(7), [pong(1)]);
    const closing = relay.close("done");
    await settle();
    assert.equal(socket.closing, null);
    socket.bufferedAmount = 0;
    await outside.pass(0.01);
    await closing;
    assert.deepEqual(socket.closing, { code: 1000, reason: "done" });
    assert.equal(edges[0].closed, "done");
});

test("a line that never drains does not hold up the end", async () => {
    const outside = new ScriptedOutside();
    const { relay, socket } = await joined(outside);
    socket.bufferedAmount = 1;
    const closing = relay.close("done");
    await outside.pass(2);
    await closing;
    assert.equal(await relay.closed, "done");
    await outside.pass(2);
    assert.deepEqual(outside.timers, []);
});

test("a silent relay is asked for a sign of life by a ping of the wire, and given up without one", async () => {
    const outside = new ScriptedOutside();
    const { edges, relay, socket } = await joined(outside);
    socket.say(7, backboneHello());
    await outside.pass(KEEP_ALIVE.intervalS + 1);
    assert.deepEqual(socket.on(0), [ping(1)]);
    socket.say(0, pong(1));
    await outside.pass(KEEP_ALIVE.intervalS + 1);
    assert.deepEqual(socket.on(0), [ping(1), ping(2)]);
    await outside.pass(KEEP_ALIVE.deadlineS + 1);
    assert.match(await relay.closed, /gave no sign of life for 2\d\.\d s/);
    await settle();
    assert.match(edges[0].closed, /no sign of life/);
    assert.deepEqual(socket.on(0).length, 2);
});

test("a tab that was frozen blames nobody", async () => {
    const outside = new ScriptedOutside();
    const { socket } = await joined(outside);
    await outside.pass(KEEP_ALIVE.intervalS + 1);
    assert.equal(socket.on(0).length, 1);
    outside.now += 3600; // no timer ran meanwhile, and nothing was read
    await outside.pass(1);
    assert.ok(!socket.isClosed);
    await outside.pass(KEEP_ALIVE.intervalS + 1);
    assert.equal(socket.on(0).length, 2);
    assert.ok(!socket.isClosed);
});

test("it answers the relay's ping, and keeps its goodbye", async () => {
    const { relay, socket } = await joined(new ScriptedOutside());
    socket.say(0, ping(9), goaway("a new version"));
    await settle();
    assert.deepEqual(socket.on(0), [pong(9)]);
    assert.equal(relay.goaway, "a new version");
});

for (const [what, act] of Object.entries({
    "a refusal later on": (socket) => socket.say(0, refuse(RefuseCode.TOKEN, "revoked")),
    "a lost connection": (socket) => socket.hangUp(),
    "bytes that are no records": (socket) => socket.sayBytes(new Uint8Array(9).fill(255)),
    "an empty message": (socket) => socket.sayBytes(new Uint8Array(0)),
})) {
    test(`${what} ends all edges, with a reason`, async () => {
        const outside = new ScriptedOutside();
        const { edges, relay, socket } = await joined(outside);
        socket.say(7, backboneHello());
        socket.say(8, backboneHello());
        act(socket);
        assert.match(await relay.closed, /revoked|1006|at most|empty message/);
        await settle();
        assert.deepEqual(
            edges.map(({ closed }) => closed === null),
            [false, false],
        );
        assert.ok(socket.isClosed);
        edges[0].link.close("again"); // harmless
        await outside.pass(3);
        assert.deepEqual(outside.timers, []);
    });
}
