// The plan of a call on the GPU: every weight row meets every pair, whatever the experts, programs and cuts.

import assert from "node:assert/strict";
import test from "node:test";

import { splitPairs } from "/static/kvasir/kernels/gpu/dispatches.js";
import { planCall } from "/static/kvasir/kernels/gpu/plan.js";
import { words } from "/static/kvasir/kernels/kx1_inputs.js";

const LIMITS = { lanes: 4, tiledFrom: 16, maxWork: 2 ** 31, bufferBytes: 32 * 2 ** 20 };
const TYPES = ["Q4_K", "Q5_K", "Q6_K", "Q8_0"];

/** Experts in two arenas, each matrix at an offset of its own. */
function makeExperts(n, { dModel, dFf }, arenas) {
    return Array.from({ length: n }, (_, i) => ({
        place: { arena: arenas[i % arenas.length], start: 0, size: 0 },
        dModel,
        dFf,
        types: { gate: TYPES[i % 2], up: TYPES[i % 3], down: TYPES[i % 4] },
        offsets: { gate: 48 * i, up: 48 * i + 16, down: 48 * i + 32 },
        exponents: { gate: i % 30, up: (i + 1) % 30, down: (i + 2) % 30 },
    }));
}

/** [first weight row, how many] that a dispatch covers. */
function coveredRows({ program, shape, x }, lanes) {
    const rows = program === "tiled" ? 32 * x : (64 / lanes) * x;
    return [shape[5], Math.min(rows, shape[1] - shape[5])];
}

/** How often each (arena, matrix offset, pair entry, weight row block of 32) is computed. */
function coverage(chunk, dispatches, lanes) {
    const counts = new Map();
    for (const dispatch of dispatches) {
        const [first, n] = coveredRows(dispatch, lanes);
        assert.ok(first % 32 === 0 && n > 0);
        for (let task = dispatch.shape[4]; task < dispatch.shape[4] + dispatch.y; task++) {
            const [weights, exponent, pair, nPairs, column] = chunk.taskTable.subarray(8 * task);
            assert.ok(nPairs >= 1 && nPairs <= { matvec_1: 1, matvec_4: 4, tiled: 32 }[dispatch.program]);
            for (let entry = pair; entry < pair + nPairs; entry++) {
                for (let row = first; row < first + n; row += 32) {
                    const key = [dispatch.arena.name, dispatch.type, weights, exponent, column, entry, row].join(" ");
                    counts.set(key, (counts.get(key) ?? 0) + 1);
                }
            }
        }
    }
    return counts;
}

/** What must be computed of a chunk, in the keys of `coverage`. */
function wanted(chunk, pairExperts, pairRows, matrix) {
    const keys = [];
    const n = chunk.pairs.length;
    const isDown = matrix === "down";
    for (let slot = 0; slot < n; slot++) {
        const [input, inputSlot] = chunk.pairTable.subarray(2 * slot);
        const [downSlot, output] = chunk.pairTable.subarray(2 * (n + slot));
        assert.deepEqual([inputSlot, downSlot], [slot, slot]);
        const pair = chunk.pairs[output];
        assert.equal(chunk.rows[input], pairRows[pair]);
        const expert = pairExperts[pair];
        const nOut = isDown ? expert.dModel : expert.dFf;
        for (let row = 0; row < nOut; row += 32) {
            const column = matrix === "up" ? expert.dFf : 0;
            const facts = [
                expert.place.arena.name,
                expert.types[matrix],
                expert.offsets[matrix],
                expert.exponents[matrix],
            ];
            keys.push([...facts, column, isDown ? n + slot : slot, row].join(" "));
        }
    }
    return keys;
}

function checkPlan(pairRows, pairExperts, limits) {
    const chunks = planCall(pairRows, pairExperts, limits);
    const pairs = chunks.flatMap((chunk) => chunk.pairs).sort((a, b) => a - b);
    assert.deepEqual(pairs, Array.from(pairRows.keys()));
    for (const chunk of chunks) {
        assert.ok(chunk.pairs.length <= 4096);
        assert.ok(
            chunk.pairs.length * Math.max(chunk.dModel, 2 * chunk.dFf) * 4 <= limits.bufferBytes ||
                chunk.pairs.length === 1,
        );
        const gateUp = [...wanted(chunk, pairExperts, pairRows, "gate"), ...wanted(chunk, pairExperts, pairRows, "up")];
        compare(coverage(chunk, chunk.gateUp, limits.lanes), gateUp);
        compare(coverage(chunk, chunk.down, limits.lanes), wanted(chunk, pairExperts, pairRows, "down"));
        for (const { x, y, shape } of [...chunk.gateUp, ...chunk.down]) {
            assert.ok(x >= 1 && x <= 65_535 && y >= 1 && y <= 65_535 && shape.length === 8);
        }
    }
    return chunks;
}

function compare(counts, keys) {
    assert.equal(new Set(keys).size, keys.length);
    assert.deepEqual([...counts.keys()].sort(), keys.sort());
}

test("one pair is one dispatch a stage and type, by the program for one", () => {
    const [expert] = makeExperts(1, { dModel: 512, dFf: 256 }, [{ name: "a" }]);
    const [chunk] = checkPlan(Uint32Array.of(3), [expert], LIMITS);
    assert.deepEqual(chunk.rows, [3]);
    assert.deepEqual(
        chunk.gateUp.map(({ program, type, x, y }) => [program, type, x, y]),
        [["matvec_1", "Q4_K", 16, 2]],
    );
    assert.deepEqual(
        chunk.down.map(({ program, x, y, work }) => [program, x, y, work]),
        [["matvec_1", 32, 1, 512 * 256]],
    );
    assert.deepEqual(chunk.gateUp[0].shape, [2, 256, 288, 512, 0, 0, 0, 0]);
    assert.deepEqual(chunk.down[0].shape, [1, 512, 144, 512, 2, 0, 0, 0]);
});

test("pairs of an expert go to the program of their number", () => {
    const found = (n) => splitPairs(n, 16).map(({ program, start, n: part }) => `${program} ${start} ${part}`);
    assert.deepEqual(found(1), ["matvec_1 0 1"]);
    assert.deepEqual(found(6), ["matvec_4 0 4", "matvec_4 4 2"]);
    assert.deepEqual(found(15), ["matvec_4 0 4", "matvec_4 4 4", "matvec_4 8 4", "matvec_4 12 3"]);
    assert.deepEqual(found(16), ["tiled 0 16"]);
    assert.deepEqual(found(33), ["tiled 0 32", "tiled 32 1"]);
});

test("a long call is split where a buffer would be too large, and where 4,096 pairs are passed", () => {
    const [expert] = makeExperts(1, { dModel: 256, dFf: 256 }, [{ name: "a" }]);
    const rows = new Uint32Array(5000);
    const experts = Array.from(rows, () => expert);
    assert.deepEqual(
        checkPlan(rows, experts, LIMITS).map((chunk) => chunk.pairs.length),
        [4096, 904],
    );
    const chunks = checkPlan(rows, experts, { ...LIMITS, bufferBytes: 2048 * 1000 });
    assert.deepEqual(
        chunks.map((chunk) => chunk.pairs.length),
        [1000, 1000, 1000, 1000, 1000],
    );
});

test("work of a dispatch stays below the limit: tasks are cut, then rows", () => {
    const [expert] = makeExperts(1, { dModel: 1024, dFf: 512 }, [{ name: "a" }]);
    const rows = new Uint32Array(64);
    const experts = Array.from(rows, () => expert);
    for (const maxWork of [2 ** 30, 2 ** 24, 2 ** 22, 2 ** 20]) {
        const [chunk] = checkPlan(rows, experts, { ...LIMITS, maxWork });
        for (const { work } of [...chunk.gateUp, ...chunk.down]) assert.ok(work <= maxWork, `${work} of ${maxWork}`);
    }
    const [smallest] = checkPlan(rows, experts, { ...LIMITS, maxWork: 1 });
    for (const { shape, y } of smallest.down) assert.ok(shape[5] % 32 === 0 && y === 1);
});

test("any call is computed whole", () => {
    const arenas = [{ name: "a" }, { name: "b" }];
    for (let seed = 0; seed < 60; seed++) {
        const drawn = words(seed, 400);
        const narrow = makeExperts(1 + (drawn[0] % 6), { dModel: 512, dFf: 256 }, arenas);
        const wide = makeExperts(drawn[1] % 3, { dModel: 512, dFf: 768 }, arenas).map((expert) => ({
            ...expert,
            offsets: {
                gate: expert.offsets.gate + 4800,
                up: expert.offsets.up + 4800,
                down: expert.offsets.down + 4800,
            },
        }));
        const experts = [...narrow, ...wide];
        const n = 1 + (drawn[2] % 90);
        const pairRows = Uint32Array.from({ length: n }, (_, i) => drawn[3 + i] % 11);
        const pairExperts = Array.from({ length: n }, (_, i) => experts[drawn[100 + i] % experts.length]);
        const limits = {
            lanes: [1, 2, 4, 8, 16][drawn[300] % 5],
            tiledFrom: [1, 8, 16, 2 ** 30][drawn[301] % 4],
            maxWork: 2 ** (16 + (drawn[302] % 16)),
            bufferBytes: 2 ** (14 + (drawn[303] % 10)),
        };
        checkPlan(pairRows, pairExperts, limits);
    }
});
