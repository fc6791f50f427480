// A worker at its relay, from the dial to the goodbye. Started by test_worker_parts.py.

import assert from "node:assert/strict";
import { test } from "node:test";
import { FIRST_S, STEADY_S } from "/static/kvasir/edge/reconnect.js";
import { recordHead } from "/static/kvasir/relay/records.js";
import { encode, join } from "/static/kvasir/wire/codec.js";
import { goaway, pause, ping, pong, RefuseCode } from "/static/kvasir/wire/frames.js";
import { checksum, Kind } from "/static/kvasir/wire/header.js";
import { mixed } from "./golden_frames.mjs";
import { backboneHello, dispatch, settle } from "./scripted_relay.mjs";
import { results, serving, world } from "./served_worker.mjs";

const UNTIL_RESUMED_MS = 2 ** 32 - 1;

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
    assert.deepEqual(
        socket
            .on(1)
            .slice(1)
            .map(({ kind }) => kind),
        [Kind.PAUSE, Kind.RESULT],
    );
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
    assert.deepEqual(
        outside.timers.filter(({ atS }) => atS > outside.now + 1),
        [],
    );
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
    const chance = (most) => (mixed(++n) >>> 7) % most;
    const said = [
        backboneHello(),
        dispatch(1),
        dispatch(2, { nRows: 2, pairIds: [1, 2, 3] }),
        ping(1),
        goaway("bye"),
        pause(5),
    ];
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
