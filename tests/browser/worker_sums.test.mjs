// Dispatches for sums: what a worker answers to them, refuses of them, and counts for them. The same cases as in
// tests/unit/test_worker_connection.py and test_worker_compute.py. Started by test_worker_parts.py.

import assert from "node:assert/strict";
import { test } from "node:test";
import { sumOutputs } from "/static/kvasir/kernels/sums.js";
import { FaultCode } from "/static/kvasir/wire/frames.js";
import { Kind, makeLimits } from "/static/kvasir/wire/header.js";
import { ComputeQueue } from "/static/kvasir/worker/serving/compute.js";
import { dispatch, holdingsOf, outputsOf, ScriptedKernel, settle } from "./scripted_relay.mjs";
import { checkResult, results, serving } from "./served_worker.mjs";

const BOUND = 4 * 256 + 1; // of the sums of a row
const COST = 261 + BOUND;

// A dispatch for sums, whose weights are 1/2, 1/4 and so on.
function askSums(request, { exponents, weights, ...changes } = {}) {
    const asked = dispatch(request, changes);
    const order = {
        weights: weights ?? Float32Array.from(asked.pairIds, (_, i) => 2 ** -(1 + (i % 5))),
        exponents: exponents ?? new Int32Array(asked.nRows).fill(-8),
    };
    return { ...asked, sums: order };
}

function checkSums(frame, asked) {
    const experts = Array.from(asked.pairIds, (id) => (asked.layer === 2 ? [4, 5, 6, 7, 12, 13, 14, 15] : [0, 1])[id]);
    const wanted = sumOutputs(
        outputsOf({ ...asked, experts }),
        asked.sums.weights,
        asked.pairRows,
        asked.sums.exponents,
    );
    const { request, layer, nRows, nPairs, dModel, sums } = frame;
    assert.deepEqual(
        [request, layer, nRows, nPairs, dModel],
        [asked.request, asked.layer, asked.nRows, asked.pairIds.length, 256],
    );
    assert.deepEqual(sums, wanted);
}

test("a dispatch for sums is answered with a row of sums for each row", async () => {
    const { socket, news } = await serving();
    const asked = askSums(9, { nRows: 3, pairIds: [0, 4, 7, 5, 1, 2] });
    socket.say(1, asked);
    await settle();
    const [frame] = results(socket);
    checkSums(frame, asked);
    assert.ok(frame.sums.some((sum) => sum > 127));
    assert.deepEqual(news.filter(Array.isArray), [[2, 1, 6]]);
});

test("a row that no pair names has the sum 0", async () => {
    const { socket } = await serving();
    const asked = askSums(1, { nRows: 3, pairIds: [3, 4], pairRows: Uint32Array.of(2, 2) });
    socket.say(1, asked);
    await settle();
    const [{ sums }] = results(socket);
    checkSums(results(socket)[0], asked);
    assert.ok(sums.subarray(0, 512).every((sum) => sum === 0));
});

test("sums and outputs are computed together, each in its own form", async () => {
    const { socket, kernel } = await serving();
    const [plain, sums, more] = [
        dispatch(1, { hasMore: true }),
        askSums(2, { pairIds: [1, 2], hasMore: true }),
        askSums(3),
    ];
    socket.say(1, plain, sums, more);
    await settle();
    assert.deepEqual(kernel.calls, [{ nRows: 3, nPairs: 4 }]);
    checkResult(results(socket)[0], plain);
    checkSums(results(socket)[1], sums);
    checkSums(results(socket)[2], more);
});

const many = (n) => ({ pairIds: Array.from({ length: n }, (_, i) => i % 8), pairRows: new Uint32Array(n) });
const FAULTS = [
    [{ weights: Float32Array.of(NaN) }, FaultCode.BAD_ROWS, /weight 0 is not finite/],
    [{ weights: Float32Array.of(-Infinity) }, FaultCode.BAD_ROWS, /weight 0 is not finite/],
    [{ exponents: Int32Array.of(-181) }, FaultCode.BAD_ROWS, /-181; -180 to 127/],
    [{ exponents: Int32Array.of(128) }, FaultCode.BAD_ROWS, /128; -180 to 127/],
    [many(32), FaultCode.BAD_ROWS, /a row has 32 pairs; sums hold at most 31/],
    [{ pairIds: [8] }, FaultCode.BAD_IDS, /local id 8/],
    [{ pairRows: Uint32Array.of(1) }, FaultCode.BAD_IDS, /row number 1/],
    [{ layer: 3 }, FaultCode.UNKNOWN_LAYER, /layer 3/],
];

for (const [changes, code, reason] of FAULTS) {
    test(`sums are refused with fault ${code}: ${reason.source}`, async () => {
        const { socket, kernel } = await serving();
        socket.say(1, askSums(5, changes));
        await settle();
        const answer = socket.on(1)[1];
        assert.deepEqual([answer.kind, answer.request, answer.code], [Kind.FAULT, 5, code]);
        assert.match(answer.message, reason);
        assert.deepEqual(kernel.calls, []);
        socket.say(1, askSums(6, many(31)));
        await settle();
        assert.equal(results(socket)[0].request, 6);
    });
}

test("sums that may be over the backbone's limits are not computed, to the byte and the row", async () => {
    const asked = askSums(1, { nRows: 2, pairIds: [0, 1, 2, 3, 4] });
    const fits = { maxPayloadBytes: 2 * BOUND, maxRows: 2, maxPairs: 5 };
    for (const [name, value] of [
        ["maxRows", 2],
        ["maxRows", 1],
        ["maxPairs", 4],
        ["maxPayloadBytes", 2 * BOUND - 1],
    ]) {
        const { socket } = await serving({}, { limits: makeLimits({ ...fits, [name]: value }) });
        socket.say(1, asked);
        await settle();
        const [, answer] = socket.on(1);
        assert.equal(
            answer.kind === Kind.FAULT ? answer.code : 0,
            value === fits[name] ? 0 : FaultCode.TOO_LARGE,
            name,
        );
    }
});

test("sums count as under way with the most that they may have", async () => {
    const pairIds = [0, 1, 2, 3, 4]; // of outputs it would be five rows
    for (const [most, nTaken] of [
        [2 * COST, 2],
        [2 * COST - 1, 1],
    ]) {
        const { socket, kernel, worker } = await serving({ maxInflightBytes: most });
        kernel.isHolding = true;
        for (let request = 1; request <= 3; request++)
            socket.say(1, askSums(request, { pairIds, hasMore: request === 1 }));
        await settle();
        assert.equal(
            kernel.calls.reduce((sum, { nPairs }) => sum + nPairs, 0),
            5 * nTaken,
        );
        kernel.isHolding = false;
        kernel.release();
        await settle();
        assert.deepEqual(
            results(socket).map(({ request }) => request),
            [1, 2, 3],
        );
        assert.ok(!worker.owes);
    }
});

test("sums never need more outputs at once than a batch may have", async () => {
    const kernel = new ScriptedKernel();
    const queue = new ComputeQueue(holdingsOf(kernel), { maxBatchBytes: 5 * 1024 + 1023 });
    const asked = askSums(1, { nRows: 2, pairIds: Array.from({ length: 12 }, (_, i) => i % 8) });
    const answers = [];
    queue.submit({ client: {}, dispatch: asked, answer: (frame) => answers.push(frame) });
    await settle();
    assert.deepEqual(
        kernel.calls.map(({ nPairs }) => nPairs),
        [5, 5, 2],
    );
    checkSums(answers[0], asked);
});
