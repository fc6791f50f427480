// A worker behind a relay, from the dial to the goodbye: who is let in, what is computed, and how all else is answered.
// Started by test_worker_parts.py.

import assert from "node:assert/strict";
import { test } from "node:test";
import { KernelError } from "/static/kvasir/kernels/errors.js";
import { FIRST_S, STEADY_S } from "/static/kvasir/wire/reconnect.js";
import { FaultCode, RefuseCode, Role, fault, goaway, pause, ping, pong, refuse } from "/static/kvasir/wire/wire_frames.js";
import { recordHead } from "/static/kvasir/wire/relay_records.js";
import { encode, join } from "/static/kvasir/wire/wire.js";
import { Kind, WireType, checksum, makeLimits } from "/static/kvasir/wire/wire_header.js";
import { RelayWorker } from "/static/kvasir/worker/join.js";
import { mixed } from "./golden_frames.mjs";
import * as scripted from "./scripted_relay.mjs";

const { KERNEL, MODEL, ScriptedKernel, ScriptedOutside, backboneHello, dispatch, holdingsOf, outputsOf, settle } = scripted;
const UNTIL_RESUMED_MS = 2 ** 32 - 1;
const COST = 261 + 4 * 256; // of a dispatch with one pair

// A worker that runs, with the world around it and all that it said of itself.
function world(config = {}, kernel = new ScriptedKernel()) {
    const outside = new ScriptedOutside();
    const news = [];
    const events = {
        onJoined: () => news.push("joined"),
        onLost: (reason) => news.push(reason),
        onComputed: ({ layer, nJobs, nPairs }) => news.push([layer, nJobs, nPairs]),
        onBackbones: () => news.push(`${worker.nBackbones} backbones`),
    };
    const means = { outside, jitter: () => 0.5 };
    const joining = { relayUrl: "wss://relay.test/relay", token: "kvs-x", ...config };
    const worker = new RelayWorker(joining, holdingsOf(kernel), events, means);
    return { outside, news, kernel, worker, ended: worker.run() };
}

// The same at the relay, with a backbone on edge 1.
async function serving(config = {}, helloChanges = {}) {
    const found = world(config);
    await settle();
    found.outside.socket.greet();
    await settle();
    found.outside.socket.say(1, backboneHello(helloChanges));
    await settle();
    return { ...found, socket: found.outside.socket };
}

const results = (socket, edge = 1) => socket.on(edge).filter(({ kind }) => kind === Kind.RESULT);

function checkResult(result, asked) {
    const experts = Array.from(asked.pairIds, (id) => ({ 2: [4, 5, 6, 7, 12, 13, 14, 15], 5: [0, 1] })[asked.layer][id]);
    assert.deepEqual([result.request, result.layer, result.nPairs], [asked.request, asked.layer, asked.pairIds.length]);
    assert.deepEqual(result.outputs, outputsOf({ ...asked, experts }));
}

test("it joins, welcomes a backbone and computes its pairs by local id", async () => {
    const { socket, news, worker } = await serving();
    const { hello } = socket.opening;
    assert.deepEqual([hello.role, hello.modelFingerprint, hello.kernelFingerprint], [Role.WORKER, MODEL, KERNEL]);
    assert.equal(hello.token, "kvs-x");
    const [welcome] = socket.on(1);
    assert.deepEqual([welcome.kind, welcome.rowFormat, welcome.dModel], [Kind.WELCOME, WireType.KX1, 256]);
    assert.deepEqual(welcome.ranges.map(({ layer, start, stop }) => [layer, start, stop]), [[2, 4, 8], [2, 12, 16], [5, 0, 2]]);
    const asked = dispatch(9, { nRows: 3, pairIds: [0, 4, 7, 5] });
    socket.say(1, asked);
    await settle();
    checkResult(socket.on(1)[1], asked);
    assert.deepEqual(news, ["joined", "1 backbones", [2, 1, 4]]);
    assert.ok(!worker.owes);
    socket.say(1, ping(3));
    await settle();
    assert.deepEqual(socket.on(1).at(-1), pong(3));
});

const REFUSALS = [
    [{ role: Role.WORKER }, RefuseCode.ROLE, /this worker serves BACKBONE/],
    [{ modelFingerprint: "0c".repeat(32) }, RefuseCode.MODEL, /0c0c.* this worker's slice is of abab/],
    [{ kernelFingerprint: "0c".repeat(32), kernel: "kx2" }, RefuseCode.KERNEL, /kx2 0c0c.* this worker has kx1 cdcd/],
];

for (const [changes, code, reason] of REFUSALS) {
    test(`a backbone that does not belong here is refused with code ${code} and both values`, async () => {
        const { socket, worker } = await serving({}, changes);
        const [refusal, ...more] = socket.on(1);
        assert.deepEqual([refusal.kind, refusal.code, more], [Kind.REFUSE, code, []]);
        assert.match(refusal.message, reason);
        assert.equal(worker.nBackbones, 0);
        socket.say(1, ping(1)); // the edge is closed
        await settle();
        assert.equal(socket.on(1).length, 1);
    });
}

test("a full worker refuses, and takes another when one has left", async () => {
    const { socket, news } = await serving({ maxClients: 1 });
    socket.say(2, backboneHello());
    await settle();
    assert.equal(socket.on(2)[0].code, RefuseCode.FULL);
    socket.say(1, fault(0, FaultCode.GONE, "backbone gone"));
    await settle();
    socket.say(3, backboneHello());
    await settle();
    assert.equal(socket.on(3)[0].kind, Kind.WELCOME);
    assert.deepEqual(news, ["joined", "1 backbones", "0 backbones", "1 backbones"]);
});

test("bytes that are no frame are refused before the welcome, and end the edge after it", async () => {
    const { socket } = await serving();
    const sayDamaged = (edge, frame, at, value) => {
        const data = join(encode(frame));
        data[at] = value;
        socket.sayBytes(join([recordHead(edge, data.length), data]));
    };
    sayDamaged(1, dispatch(1), 60, 77);
    sayDamaged(2, backboneHello(), 40, 77);
    sayDamaged(3, backboneHello(), 4, 9);
    await settle();
    const [, ended] = socket.on(1);
    assert.deepEqual([ended.kind, ended.request, ended.code], [Kind.FAULT, 0, FaultCode.PROTOCOL]);
    assert.match(ended.message, /checksum/);
    const [malformed, version] = [...socket.on(2), ...socket.on(3)];
    assert.deepEqual([malformed.kind, malformed.code], [Kind.REFUSE, RefuseCode.MALFORMED]);
    assert.deepEqual([version.kind, version.code], [Kind.REFUSE, RefuseCode.VERSION]);
    assert.match(version.message, /version 9 .* speaks 1/);
});

const FAULTS = [
    [{ layer: 3 }, FaultCode.UNKNOWN_LAYER, /layer 3 is not held here; 2, 5 are/],
    [{ pairIds: [8] }, FaultCode.BAD_IDS, /local id 8 does not exist, there are 8/],
    [{ pairIds: [4294967295] }, FaultCode.BAD_IDS, /local id 4294967295/],
    [{ pairRows: Uint32Array.of(1) }, FaultCode.BAD_IDS, /row number 1 does not exist, there are 1/],
    [{ dModel: 512 }, FaultCode.BAD_ROWS, /KX1 of 512 values, KX1 of 256 are needed/],
    [{ dModel: 3, rowFormat: WireType.F32, rows: new Uint8Array(12) }, FaultCode.BAD_ROWS, /F32 of 3 values/],
];

for (const [changes, code, reason] of FAULTS) {
    test(`a dispatch with ${JSON.stringify(changes).slice(0, 40)} is answered with fault ${code}`, async () => {
        const { socket, kernel } = await serving();
        socket.say(1, dispatch(5, changes));
        await settle();
        const answer = socket.on(1)[1];
        assert.deepEqual([answer.kind, answer.request, answer.code], [Kind.FAULT, 5, code]);
        assert.match(answer.message, reason);
        assert.deepEqual(kernel.calls, []);
        socket.say(1, dispatch(6));
        await settle();
        assert.equal(socket.on(1)[2].request, 6);
    });
}

test("an answer over the backbone's limits is not computed", async () => {
    const { socket } = await serving({}, { limits: makeLimits({ maxPayloadBytes: 3 * 1024, maxPairs: 4 }) });
    socket.say(1, dispatch(1, { pairIds: [0, 1, 2, 3] }), dispatch(2, { pairIds: [0, 1, 2] }));
    await settle();
    assert.deepEqual(socket.on(1).slice(1).map(({ kind, code }) => [kind, code]), [[Kind.FAULT, FaultCode.TOO_LARGE], [Kind.RESULT, undefined]]);
});

test("frames out of place end their edge with a reason, and nobody else's", async () => {
    for (const frame of [backboneHello(), pause(1), refuse(RefuseCode.FULL, ""), fault(1, FaultCode.BAD_IDS, "")]) {
        const { socket, worker } = await serving();
        socket.say(2, backboneHello());
        socket.say(1, frame);
        await settle();
        const last = socket.on(1).at(-1);
        assert.deepEqual([last.kind, last.request, last.code], [Kind.FAULT, 0, FaultCode.PROTOCOL]);
        assert.match(last.message, /is not for a worker after the handshake/);
        assert.equal(worker.nBackbones, 1);
        socket.say(2, dispatch(1));
        await settle();
        assert.equal(results(socket, 2).length, 1);
    }
    const { socket } = await serving();
    socket.say(1, goaway("bye"), pong(1));
    await settle();
    assert.equal(socket.on(1).length, 1);
});

test("a second frame of an edge that is no hello is the first to be refused", async () => {
    const { socket } = await serving();
    const hello = backboneHello();
    socket.say(2, { ...hello, role: Role.WORKER });
    await settle();
    socket.say(2, hello);
    await settle();
    assert.deepEqual(socket.on(2).map(({ kind }) => kind), [Kind.REFUSE, Kind.WELCOME]); // the number was free again
});

test("waiting jobs of one layer are computed together, with the same bits and each to its own edge", async () => {
    const kernel = new ScriptedKernel();
    const found = world({}, kernel);
    await settle();
    const { socket } = found.outside;
    socket.greet();
    for (const edge of [1, 2]) socket.say(edge, backboneHello());
    await settle();
    kernel.isHolding = true;
    socket.say(1, dispatch(1));
    await settle();
    socket.say(2, dispatch(1, { layer: 5, pairIds: [1] }));
    await settle();
    assert.equal(kernel.held.length, 2); // two batches are in flight
    const asked = [dispatch(2, { nRows: 2, pairIds: [1, 2, 3] }), dispatch(3, { nRows: 1, pairIds: [7] })];
    socket.say(1, ...asked);
    const other = dispatch(4, { nRows: 2, pairIds: [6, 5] });
    socket.say(2, other);
    await settle();
    assert.equal(kernel.calls.length, 2);
    kernel.isHolding = false;
    kernel.release();
    await settle();
    assert.deepEqual(kernel.calls.slice(2), [{ nRows: 5, nPairs: 6 }]);
    results(socket, 1).slice(1).forEach((result, i) => checkResult(result, asked[i]));
    checkResult(results(socket, 2)[1], other);
    assert.deepEqual(found.news.filter(Array.isArray).at(-1), [2, 3, 6]);
});

test("parts that announce more are computed together, once the last has come", async () => {
    const { socket, kernel } = await serving();
    socket.say(1, dispatch(1, { hasMore: true }));
    await settle();
    socket.say(1, dispatch(2, { hasMore: true }));
    await settle();
    assert.deepEqual(kernel.calls, []);
    socket.say(1, dispatch(3));
    await settle();
    assert.deepEqual(kernel.calls, [{ nRows: 3, nPairs: 3 }]);
    assert.deepEqual(results(socket).map(({ request }) => request), [1, 2, 3]);
});

test("what is over the budget waits until answers have gone out", async () => {
    const { socket, kernel, worker } = await serving({ maxInflightBytes: 2 * COST });
    kernel.isHolding = true;
    for (let request = 1; request <= 5; request++) socket.say(1, dispatch(request, { hasMore: request === 2 }));
    await settle();
    assert.equal(kernel.calls.reduce((sum, { nPairs }) => sum + nPairs, 0), 2);
    assert.ok(worker.owes);
    kernel.isHolding = false;
    kernel.release();
    await settle();
    assert.deepEqual(results(socket).map(({ request }) => request), [1, 2, 3, 4, 5]);
    assert.ok(!worker.owes);
});

test("answers that a slow line holds back count as under way", async () => {
    const { socket, kernel, outside } = await serving({ maxInflightBytes: 3 * COST });
    socket.bufferedAmount = 2 ** 20;
    for (let request = 1; request <= 4; request++) {
        socket.say(1, dispatch(request));
        await settle();
    }
    const nComputed = () => kernel.calls.reduce((sum, { nPairs }) => sum + nPairs, 0);
    assert.equal(nComputed(), 3); // of which three answers wait, of 1068 bytes each
    socket.bufferedAmount = 0;
    await outside.pass(0.01);
    assert.equal(nComputed(), 4);
    assert.deepEqual(results(socket).map(({ request }) => request), [1, 2, 3, 4]);
});

test("bad rows fail their own dispatch only, and a defect is answered", async () => {
    const { socket, kernel, news } = await serving();
    kernel.failure = (rows) => (rows.includes(200) ? new KernelError("code -128 in row 0") : null);
    const bad = dispatch(2);
    bad.rows[17] = 200;
    socket.say(1, dispatch(1), bad, dispatch(3));
    await settle();
    assert.deepEqual(results(socket).map(({ request }) => request), [1, 3]);
    assert.deepEqual(socket.on(1)[2], fault(2, FaultCode.BAD_ROWS, "code -128 in row 0"));
    kernel.failure = () => new TypeError("a defect");
    socket.say(1, dispatch(4));
    await settle();
    assert.deepEqual(socket.on(1).at(-1), fault(4, FaultCode.INTERNAL, "TypeError: a defect"));
    assert.deepEqual(news.filter(Array.isArray), [[2, 2, 2]]); // faults do not count as computed
    kernel.failure = null;
    socket.say(1, dispatch(5, { isReplyF16: true }));
    await settle();
    assert.ok(results(socket).at(-1).outputs instanceof Uint16Array);
});

test("what a lost backbone asked for is forgotten, and its late answer goes nowhere", async () => {
    const { socket, kernel, worker } = await serving();
    kernel.isHolding = true;
    for (let request = 1; request <= 4; request++) {
        socket.say(1, dispatch(request));
        await settle();
    }
    assert.equal(kernel.calls.length, 2);
    socket.say(1, fault(0, FaultCode.GONE, "backbone gone"));
    kernel.isHolding = false;
    kernel.release();
    await settle();
    assert.equal(kernel.calls.length, 2);
    assert.equal(socket.on(1).length, 1);
    assert.ok(!worker.owes);
});

test("a pause is told to all, also to who comes later, and answers go on", async () => {
    const { socket, kernel, worker } = await serving();
    kernel.isHolding = true;
    socket.say(1, dispatch(1));
    await settle();
    worker.setPaused(true);
    worker.setPaused(true);
    socket.say(2, backboneHello());
    kernel.release();
    await settle();
    assert.deepEqual(socket.on(1).slice(1).map(({ kind }) => kind), [Kind.PAUSE, Kind.RESULT]);
    assert.deepEqual(socket.on(1)[1], pause(UNTIL_RESUMED_MS));
    assert.deepEqual(socket.on(2)[1], pause(UNTIL_RESUMED_MS));
    worker.setPaused(false);
    await settle();
    assert.deepEqual([socket.on(1).at(-1), socket.on(2).at(-1)], [pause(0), pause(0)]);
});

test("it leaves with a goodbye, after what is under way is answered", async () => {
    const { socket, kernel, worker, ended, outside } = await serving();
    kernel.isHolding = true;
    socket.say(1, dispatch(1));
    await settle();
    worker.stop("the visitor leaves");
    await settle();
    assert.deepEqual(socket.on(1).at(-1), goaway("the visitor leaves"));
    socket.say(2, backboneHello());
    await settle();
    assert.equal(socket.on(2)[0].code, RefuseCode.STOPPING);
    assert.ok(!socket.isClosed);
    kernel.release();
    await ended;
    assert.equal(results(socket).length, 1);
    assert.deepEqual(socket.closing, { code: 1000, reason: "the visitor leaves" });
    assert.equal(outside.sockets.length, 1);
    assert.ok(!worker.isJoined);
});

test("it leaves at once when nothing is under way", async () => {
    const { socket, worker, ended, outside } = await serving();
    assert.ok(worker.isJoined);
    worker.stop("the visitor leaves");
    await ended;
    assert.deepEqual(socket.on(1).slice(1), [goaway("the visitor leaves")]);
    assert.equal(outside.now, 1000);
});

test("a kernel that never answers does not hold up the goodbye", async () => {
    const { socket, kernel, worker, ended, outside } = await serving();
    kernel.isHolding = true;
    socket.say(1, dispatch(1));
    await settle();
    worker.stop("the visitor leaves");
    for (let second = 0; second < 10; second++) {
        await outside.pass(1);
        socket.say(0, pong(second));
    }
    await ended;
    assert.equal(results(socket).length, 0);
});

test("a relay that is away is dialled again, later and later, and at once when asked to", async () => {
    const { outside, news, worker, ended } = world();
    assert.ok(!worker.isJoined);
    for (let n = 1; n <= 4; n++) {
        await settle();
        assert.equal(outside.sockets.length, n);
        outside.socket.hangUp(1006);
        const delayS = FIRST_S * 2 ** (n - 1) * 0.55;
        await outside.pass(delayS - 0.001);
        assert.equal(outside.sockets.length, n);
        if (n < 4) await outside.pass(0.002);
    }
    worker.dialNow();
    await settle();
    assert.equal(outside.sockets.length, 5);
    assert.equal(news.length, 4);
    assert.match(news[0], /cannot be reached: socket closed \(1006: \)/);
    outside.socket.greet();
    await outside.pass(1);
    assert.ok(worker.isJoined);
    outside.socket.hangUp(1012, "the relay stops");
    await settle();
    assert.deepEqual([news[4], worker.isJoined], ["joined", false]);
    assert.match(news[5], /1012: the relay stops/);
    await outside.pass(FIRST_S * 2 ** 4 * 0.55 - 0.001); // a relay that takes and drops is as bad as none
    assert.equal(outside.sockets.length, 5);
    worker.stop("done"); // while it waits
    await ended;
    assert.deepEqual(outside.timers.filter(({ atS }) => atS > outside.now + 1), []);
});

test("a relay that was steady is dialled again soon", async () => {
    const { outside, worker, ended } = world();
    for (let n = 0; n < 5; n++) {
        await settle();
        outside.socket.hangUp();
        await outside.pass(30);
    }
    outside.socket.greet();
    for (let second = 0; second < STEADY_S + 1; second++) {
        await outside.pass(1);
        outside.socket.say(0, pong(second));
    }
    const nBefore = outside.sockets.length;
    outside.socket.hangUp();
    await outside.pass(FIRST_S);
    assert.equal(outside.sockets.length, nBefore + 1);
    worker.stop("done"); // while it dials
    await ended;
});

test("whatever a relay says, it is answered, or ends its edge or the socket; and nothing is a defect", async (context) => {
    const complaints = context.mock.method(console, "error", () => undefined);
    let [nEdges, nSockets, n] = [0, 0, 0];
    const chance = (most) => (mixed((n += 1)) >>> 7) % most;
    const said = [backboneHello(), dispatch(1), dispatch(2, { nRows: 2, pairIds: [1, 2, 3] }), ping(1), goaway("bye"), pause(5)];
    for (let round = 0; round < 150; round++) {
        const { socket, worker, ended } = await serving();
        for (let i = 0; i < 3 && !socket.isClosed; i++) {
            const frame = join(encode(said[chance(said.length)]));
            for (let k = chance(3); k > 0; k--) frame[chance(frame.length)] ^= 1 << chance(8);
            if (chance(2) === 0) new DataView(frame.buffer).setUint32(32, checksum(frame, [frame.subarray(36)]), true);
            const record = join([recordHead([0, 1, 1, 1, 1, 2, 2, 3][chance(8)], frame.length), frame]);
            const noise = join([record, recordHead(1, 8), new Uint8Array(8)]);
            const cut = noise.subarray(0, chance(noise.length));
            socket.sayBytes([noise, cut, record, record, record, record, record, record][chance(8)]);
            await settle();
        }
        nSockets += socket.isClosed;
        nEdges += worker.nBackbones === 0;
        worker.stop("done");
        await settle();
        socket.hangUp();
        await ended;
    }
    assert.equal(complaints.mock.callCount(), 0, String(complaints.mock.calls[0]?.arguments[0]?.stack));
    assert.ok(nSockets > 20 && nEdges > 60 && nEdges < 140, `${nSockets} sockets and ${nEdges} edges ended`);
});
