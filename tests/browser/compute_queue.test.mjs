// The compute queue: turns, bounded batches with every answer as it would be alone, failures that stay put.
// The same cases as in tests/unit/test_worker_compute.py. Started by test_worker_parts.py.

import assert from "node:assert/strict";
import { test } from "node:test";
import { KernelError, KernelLostError, KernelMemoryError } from "/static/kvasir/errors.js";
import { FaultCode } from "/static/kvasir/wire/frames.js";
import { Kind } from "/static/kvasir/wire/header.js";
import { ComputeQueue } from "/static/kvasir/worker/serving/compute.js";
import { dispatch, holdingsOf, outputsOf, ScriptedKernel, settle } from "./scripted_relay.mjs";

const ROW_BYTES = 4 * 256; // of outputs

// Submits jobs and keeps the answers in the order in which they come.
class Desk {
    constructor({ kernel = new ScriptedKernel(), ...options } = {}) {
        this.kernel = kernel;
        this.computed = [];
        this.answers = [];
        this.clients = {};
        this.queue = new ComputeQueue(holdingsOf(kernel), {
            onComputed: (told) => this.computed.push(told),
            ...options,
        });
    }

    submit(name, asked) {
        this.clients[name] ??= { name };
        const client = this.clients[name];
        this.queue.submit({
            client,
            dispatch: asked,
            answer: (frame) => this.answers.push([name, frame.request, frame]),
        });
    }

    // A kernel that is busy with two dispatches of other clients, so that what comes now waits.
    async keepBusy() {
        this.kernel.isHolding = true;
        for (const name of ["first", "second"]) {
            this.submit(name, dispatch(900, { layer: 5 }));
            await settle();
        }
        assert.equal(this.kernel.held.length, 2);
    }

    // From now on one batch is computed after the other.
    async finish() {
        while (this.kernel.held.length > 0) {
            this.kernel.held.shift()();
            await settle();
        }
    }

    get order() {
        return this.answers.map(([name, request]) => [name, request]).filter(([, request]) => request !== 900);
    }
}

const pairs = (n) => Array.from({ length: n }, (_, i) => i % 8);
const sizes = (kernel) => kernel.calls.slice(2).map(({ nPairs }) => nPairs);

test("jobs of one layer are computed together, others not with them, all with their own bits", async () => {
    const desk = new Desk();
    await desk.keepBusy();
    const asked = [1, 2, 3, 4, 5, 6].map((n) =>
        dispatch(n, { layer: n % 2 ? 2 : 5, nRows: 1 + (n % 3), pairIds: pairs(n).map((id) => id % 2) }),
    );
    for (const [i, item] of asked.entries()) desk.submit(`client ${i % 3}`, item);
    await settle();
    await desk.finish();
    assert.deepEqual(sizes(desk.kernel), [1 + 3 + 5, 2 + 4 + 6]);
    for (const [, request, frame] of desk.answers.filter((item) => item[1] !== 900)) {
        const { layer, pairIds, ...item } = asked[request - 1];
        const experts = Array.from(pairIds, (id) => (layer === 2 ? 4 : 0) + id);
        assert.deepEqual(frame.outputs, outputsOf({ ...item, experts }));
    }
    assert.deepEqual(desk.computed.map(({ layer, nJobs, nPairs }) => [layer, nJobs, nPairs]).slice(2), [
        [2, 3, 9],
        [5, 3, 12],
    ]);
    assert.ok(desk.computed.every(({ seconds }) => seconds >= 0 && seconds < 600));
});

test("a batch is bounded to the byte, but one job always fits", async () => {
    const desk = new Desk({ maxBatchBytes: 5 * ROW_BYTES });
    await desk.keepBusy();
    for (const [i, n] of [9, 2, 2, 2, 1].entries()) desk.submit("a", dispatch(i + 1, { pairIds: pairs(n) }));
    await settle();
    await desk.finish();
    assert.deepEqual(sizes(desk.kernel), [9, 5, 2]);
    assert.deepEqual(
        desk.order,
        [1, 2, 3, 5, 4].map((request) => ["a", request]),
    );
});

test("clients take turns", async () => {
    const desk = new Desk({ maxBatchBytes: 1 });
    await desk.keepBusy();
    for (let request = 1; request <= 3; request++) desk.submit("greedy", dispatch(request));
    desk.submit("modest", dispatch(9));
    await settle();
    await desk.finish();
    assert.deepEqual(desk.order, [
        ["greedy", 1],
        ["modest", 9],
        ["greedy", 2],
        ["greedy", 3],
    ]);
});

test("what a client that is gone had waiting is not computed, and nothing is after the end", async () => {
    const desk = new Desk({ maxBatchBytes: 1 });
    await desk.keepBusy();
    desk.submit("gone", dispatch(1));
    desk.submit("here", dispatch(2));
    desk.queue.forget(desk.clients.gone);
    await settle();
    desk.kernel.held.shift()();
    await settle();
    assert.equal(desk.kernel.calls.length, 3);
    desk.submit("here", dispatch(3));
    desk.queue.stop();
    await settle();
    const nAnswers = desk.answers.length;
    await desk.finish();
    desk.submit("here", dispatch(4));
    await settle();
    assert.equal(desk.kernel.calls.length, 3);
    assert.equal(desk.answers.length, nAnswers);
});

const FAILURES = [
    [new KernelError("code -128 in row 3"), FaultCode.BAD_ROWS, "code -128 in row 3"],
    [new KernelLostError("the device is lost"), FaultCode.INTERNAL, "KernelLostError: the device is lost"],
    [new KernelMemoryError(2, 1), FaultCode.INTERNAL, /^KernelMemoryError: no memory for 2 bytes/],
    [new RangeError("a\ndefect"), FaultCode.INTERNAL, "RangeError: a defect"],
];

for (const [error, code, message] of FAILURES) {
    test(`a kernel that throws ${error.name} is answered with fault ${code}, and the queue lives on`, async () => {
        const desk = new Desk();
        desk.kernel.failure = () => error;
        desk.submit("a", dispatch(1));
        await settle();
        const [[, request, fault]] = desk.answers;
        assert.deepEqual([request, fault.kind, fault.code], [1, Kind.FAULT, code]);
        if (message instanceof RegExp) assert.match(fault.message, message);
        else assert.equal(fault.message, message);
        assert.equal(desk.kernel.calls.length, 1); // alone it is not tried twice
        desk.kernel.failure = null;
        desk.submit("a", dispatch(2));
        await settle();
        assert.equal(desk.answers[1][2].kind, Kind.RESULT);
        assert.deepEqual(
            desk.computed.map(({ nJobs }) => nJobs),
            [1],
        );
    });
}

test("a kernel that gives too few values is found out", async () => {
    const desk = new Desk();
    desk.kernel.compute = async () => new Float32Array(255);
    desk.submit("a", dispatch(1));
    await settle();
    assert.match(desk.answers[0][2].message, /gave 255 values, 256 are needed/);
});

test("the kernel gets rows of their own, in whole and in their order", async () => {
    const desk = new Desk();
    const { compute } = desk.kernel;
    const buffers = [];
    desk.kernel.compute = async (call) => {
        buffers.push([call.rows.byteOffset, call.rows.buffer.byteLength, call.rows.byteLength]);
        return compute.call(desk.kernel, call);
    };
    const message = new Uint8Array(10_000);
    const asked = dispatch(1, { nRows: 3, pairIds: [0, 1, 2] });
    message.set(asked.rows, 77);
    desk.submit("a", { ...asked, rows: message.subarray(77, 77 + asked.rows.length) });
    await settle();
    assert.deepEqual(buffers, [[0, 783, 783]]);
    assert.deepEqual(desk.answers[0][2].outputs, outputsOf({ ...asked, experts: [4, 5, 6] }));
});
