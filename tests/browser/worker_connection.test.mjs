// Connections behind a relay: who is let in, what is computed, and how all else is answered. The same cases as in
// tests/unit/test_worker_connection.py. Started by test_worker_parts.py.

import assert from "node:assert/strict";
import { test } from "node:test";
import { KernelError } from "/static/kvasir/errors.js";
import { recordHead } from "/static/kvasir/relay/records.js";
import { encode, join } from "/static/kvasir/wire/codec.js";
import { FaultCode, fault, goaway, pause, ping, pong, RefuseCode, Role, refuse } from "/static/kvasir/wire/frames.js";
import { Kind, makeLimits, WireType } from "/static/kvasir/wire/header.js";
import { backboneHello, dispatch, KERNEL, MODEL, ScriptedKernel, settle } from "./scripted_relay.mjs";
import { checkResult, results, serving, world } from "./served_worker.mjs";

const COST = 261 + 4 * 256; // of a dispatch with one pair

test("it joins, welcomes a backbone and computes its pairs by local id", async () => {
    const { socket, news, worker } = await serving();
    const { hello } = socket.opening;
    assert.deepEqual([hello.role, hello.modelFingerprint, hello.kernelFingerprint], [Role.WORKER, MODEL, KERNEL]);
    assert.equal(hello.token, "kvs-x");
    const [welcome] = socket.on(1);
    assert.deepEqual([welcome.kind, welcome.rowFormat, welcome.dModel], [Kind.WELCOME, WireType.KX1, 256]);
    assert.deepEqual(
        welcome.ranges.map(({ layer, start, stop }) => [layer, start, stop]),
        [
            [2, 4, 8],
            [2, 12, 16],
            [5, 0, 2],
        ],
    );
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
    assert.match(version.message, /version 9 .* speaks 2/);
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

test("a fault that ended one request does not stand for the end of the edge", async () => {
    const { socket } = await serving();
    socket.say(1, dispatch(5, { layer: 3 }), backboneHello());
    await settle();
    const [, first, last, ...more] = socket.on(1);
    assert.deepEqual([first.request, first.code], [5, FaultCode.UNKNOWN_LAYER]);
    assert.deepEqual([last.request, last.code, more], [0, FaultCode.PROTOCOL, []]);
});

test("an answer over the backbone's limits is not computed", async () => {
    const { socket } = await serving({}, { limits: makeLimits({ maxPayloadBytes: 3 * 1024, maxPairs: 4 }) });
    socket.say(1, dispatch(1, { pairIds: [0, 1, 2, 3] }), dispatch(2, { pairIds: [0, 1, 2] }));
    await settle();
    assert.deepEqual(
        socket
            .on(1)
            .slice(1)
            .map(({ kind, code }) => [kind, code]),
        [
            [Kind.FAULT, FaultCode.TOO_LARGE],
            [Kind.RESULT, undefined],
        ],
    );
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
    assert.deepEqual(
        socket.on(2).map(({ kind }) => kind),
        [Kind.REFUSE, Kind.WELCOME],
    ); // the number was free again
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
    for (const [i, result] of results(socket, 1).slice(1).entries()) checkResult(result, asked[i]);
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
    assert.deepEqual(
        results(socket).map(({ request }) => request),
        [1, 2, 3],
    );
});

test("what is over the budget waits until answers have gone out", async () => {
    const { socket, kernel, worker } = await serving({ maxInflightBytes: 2 * COST });
    kernel.isHolding = true;
    for (let request = 1; request <= 5; request++) socket.say(1, dispatch(request, { hasMore: request === 2 }));
    await settle();
    assert.equal(
        kernel.calls.reduce((sum, { nPairs }) => sum + nPairs, 0),
        2,
    );
    assert.ok(worker.owes);
    kernel.isHolding = false;
    kernel.release();
    await settle();
    assert.deepEqual(
        results(socket).map(({ request }) => request),
        [1, 2, 3, 4, 5],
    );
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
    assert.deepEqual(
        results(socket).map(({ request }) => request),
        [1, 2, 3, 4],
    );
});

test("bad rows fail their own dispatch only, and a defect is answered", async () => {
    const { socket, kernel, news } = await serving();
    kernel.failure = (rows) => (rows.includes(200) ? new KernelError("code -128 in row 0") : null);
    const bad = dispatch(2);
    bad.rows[17] = 200;
    socket.say(1, dispatch(1), bad, dispatch(3));
    await settle();
    assert.deepEqual(
        results(socket).map(({ request }) => request),
        [1, 3],
    );
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
