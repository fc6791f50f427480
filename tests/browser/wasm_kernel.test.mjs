// KX1 in WebAssembly, in node: golden vectors for every build, the self-test, and the kernel's threads.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";

import { KernelError, KernelLostError, KernelMemoryError } from "/static/kvasir/errors.js";
import { expertBytes, KX1_FINGERPRINT, packedRowBytes, packRows } from "/static/kvasir/kernels/kx1_format.js";
import { plainRows } from "/static/kvasir/kernels/kx1_inputs.js";
import { madeExpert, SELF_TEST_DIGEST, selfTest } from "/static/kvasir/kernels/selftest.js";
import { BUILDS, chooseBuild, fetchModule } from "/static/kvasir/kernels/wasm/builds.js";
import { Kx1Instance } from "/static/kvasir/kernels/wasm/instance.js";
import { createWasmKernel } from "/static/kvasir/kernels/wasm/kernel.js";
import { checkVectors } from "./pages/kx1_vectors.js";
import { readBuild, startThread } from "./wasm_node.mjs";

const GOLDEN = new URL("../golden/kx1/", import.meta.url);
const SHAPE = { dModel: 512, dFf: 256 };
const TYPES = { gate: "Q4_K", up: "Q5_K", down: "Q6_K" };
const EXPERT = madeExpert(TYPES, SHAPE, 7, "plain");

/** Run with a kernel of the first build, which is closed at the end. */
async function withKernel(options, act) {
    const kernel = await createWasmKernel({ build: "kx1_relaxed16", nThreads: 2, startThread, readBuild, ...options });
    try {
        await act(kernel);
    } finally {
        kernel.close();
    }
}

/** A call of some rows of `plainRows`; pair i is row `pairRows[i]` of expert `pairKeys[i]`. */
function callOf(pairRows, pairKeys, nRows = 4) {
    const rows = packRows(plainRows(nRows, SHAPE.dModel, 3), SHAPE.dModel);
    return { rows, nRows, dModel: SHAPE.dModel, pairRows: Uint32Array.from(pairRows), pairKeys };
}

for (const name of BUILDS) {
    test(`${name} meets every golden vector`, async () => {
        const { cases } = JSON.parse(await readFile(new URL("vectors.json", GOLDEN), "utf8"));
        const file = await readFile(new URL("vectors.bin", GOLDEN));
        const bytes = file.buffer.slice(file.byteOffset, file.byteOffset + file.length);
        const instance = await Kx1Instance.of(await fetchModule(name, readBuild));
        assert.deepEqual(await checkVectors({ cases, bytes }, instance), { nCases: 54, differing: [] });
    });

    test(`${name} passes the self-test through the kernel`, async () => {
        await withKernel({ build: name }, async (kernel) => {
            const told = { digest: SELF_TEST_DIGEST, fingerprint: KX1_FINGERPRINT };
            assert.deepEqual(await selfTest(kernel), told);
            assert.equal(kernel.loadedBytes, 0);
        });
    });
}

test("a build that this engine takes is chosen by itself", async () => {
    assert.ok(BUILDS.includes(await chooseBuild({ readBuild })));
});

test("a kernel that gives one wrong bit fails the self-test, which says where", async () => {
    await withKernel({}, async (kernel) => {
        const wrong = {
            load: (key, weights) => kernel.load(key, weights),
            unload: (key) => kernel.unload(key),
            compute: async (call) => {
                const outputs = await kernel.compute(call);
                new Uint32Array(outputs.buffer)[outputs.length - 1] ^= 1;
                return outputs;
            },
        };
        await assert.rejects(selfTest(wrong), /outputs of the second expert .*\(Q4_K Q4_K Q6_K\)/);
    });
});

test("outputs come in the order of the pairs, whatever threads and calls they are in", async () => {
    await withKernel({ nThreads: 3 }, async (kernel) => {
        const keys = ["a", "b", "c", "d", "e"];
        for (const [i, key] of keys.entries()) await kernel.load(key, madeExpert(TYPES, SHAPE, 50 + 3 * i, "plain"));
        const pairRows = Array.from({ length: 20 }, (_, i) => (7 * i) % 4);
        const pairKeys = pairRows.map((_, i) => keys[(3 * i) % 5]);
        const together = await kernel.compute(callOf(pairRows, pairKeys));
        const alone = await Promise.all(pairRows.map((row, i) => kernel.compute(callOf([row], [pairKeys[i]]))));
        assert.deepEqual(together, Float32Array.from(alone.flatMap((outputs) => [...outputs])));
        assert.equal(new Set(alone.map((outputs) => outputs[0])).size, 20);
    });
});

test("more rows than are computed together give the same bits", async () => {
    await withKernel({}, async (kernel) => {
        await kernel.load("a", EXPERT);
        const few = await kernel.compute(callOf([0, 1, 2, 3], Array(4).fill("a")));
        const many = await kernel.compute(
            callOf(
                Array.from({ length: 300 }, (_, i) => i % 4),
                Array(300).fill("a"),
            ),
        );
        for (const pair of [0, 127, 128, 255, 256, 299]) {
            const [start, wanted] = [pair * SHAPE.dModel, (pair % 4) * SHAPE.dModel];
            assert.deepEqual(many.subarray(start, start + SHAPE.dModel), few.subarray(wanted, wanted + SHAPE.dModel));
        }
    });
});

test("experts are spread over the threads, counted, and forgotten", async () => {
    await withKernel({ nThreads: 2 }, async (kernel) => {
        for (const key of ["a", "b", "c", "d"]) await kernel.load(key, EXPERT);
        assert.deepEqual(
            kernel.threads.map((thread) => thread.loadedBytes),
            Array(2).fill(2 * expertBytes(EXPERT)),
        );
        assert.equal(kernel.loadedBytes, 4 * expertBytes(EXPERT));
        kernel.unload("a");
        kernel.unload("a");
        kernel.unload("never loaded");
        assert.equal(kernel.loadedBytes, 3 * expertBytes(EXPERT));
        await assert.rejects(kernel.compute(callOf([0], ["a"])), /expert a is not loaded/);
        await kernel.load("a", EXPERT);
        await kernel.compute(callOf([0], ["a"]));
    });
});

test("memory that was given back is used again", async () => {
    const instance = await Kx1Instance.of(await fetchModule("kx1_simd128", readBuild));
    let nBytes = 0;
    for (let round = 0; round < 50; round++) {
        const held = Array.from({ length: 4 }, () => instance.load(EXPERT, [0, 0, 0]));
        for (const expert of held) instance.unload(expert);
        if (round === 0) nBytes = instance.exports.memory.buffer.byteLength;
    }
    assert.equal(instance.exports.memory.buffer.byteLength, nBytes);
});

test("an expert too many is refused, and the others still answer", async () => {
    await withKernel({ maxBytes: 2.5 * expertBytes(EXPERT) }, async (kernel) => {
        await kernel.load("a", EXPERT);
        await kernel.load("b", EXPERT);
        const needed = expertBytes(EXPERT);
        await assert.rejects(kernel.load("c", EXPERT), (error) => {
            assert.ok(error instanceof KernelMemoryError);
            assert.deepEqual([error.needed, error.available], [needed, 0.5 * needed]);
            return true;
        });
        assert.equal((await kernel.compute(callOf([0, 1], ["a", "b"]))).length, 2 * SHAPE.dModel);
        kernel.unload("a");
        await kernel.load("c", EXPERT);
    });
});

test("an instance whose memory is full says so and goes on", async () => {
    const instance = await Kx1Instance.of(await fetchModule("kx1_simd128", readBuild));
    const expert = instance.load(EXPERT, [0, 0, 0]);
    assert.throws(() => instance.allocate(2 ** 32 - 2 ** 16), KernelMemoryError);
    const rows = packRows(plainRows(1, SHAPE.dModel, 3), SHAPE.dModel);
    instance.compute(expert, rows, new Float32Array(SHAPE.dModel));
});

/** Weights that are not what KX1 computes, and what is said. */
const REFUSED = [
    [{ dModel: 500 }, /dModel is 500; KX1 needs a multiple of 256, 256 to 16384/],
    [{ dFf: 16640 }, /dFf is 16640/],
    [{ types: { ...TYPES, up: "Q3_K" } }, /up is Q3_K; KX1 computes Q4_K, Q5_K, Q6_K, Q8_0/],
    [{ down: EXPERT.down.subarray(1) }, /down has \d+ bytes; 512 x 256 of Q6_K has \d+/],
    [{ down: EXPERT.down.map((byte, i) => (i === 209 ? 0x7c : byte)) }, /down: a scale is infinite or NaN/],
    [{ up: EXPERT.up.map((byte, i) => (i === 177 ? 0xfc : byte)) }, /up: a scale is infinite or NaN/],
];

test("weights that KX1 does not compute are refused", async () => {
    await withKernel({ nThreads: 1 }, async (kernel) => {
        for (const [change, said] of REFUSED) {
            await assert.rejects(kernel.load("bad", { ...EXPERT, ...change }), { name: "KernelError", message: said });
        }
        await kernel.load("a", EXPERT);
        await assert.rejects(kernel.load("a", EXPERT), /expert a is loaded already/);
        assert.equal(kernel.loadedBytes, expertBytes(EXPERT));
    });
});

/** Calls that are not what they should be, and what is said. */
const CALLS = [
    [{ dModel: 768 }, /4 rows have \d+ bytes; 3132 are needed/],
    [{ nRows: 3 }, /3 rows have 2088 bytes; 1566 are needed/],
    [{ pairRows: Uint32Array.of(4) }, /row number 4 does not exist; there are 4/],
    [{ pairRows: Uint32Array.of(0, 1) }, /2 pairRows but 1 pairKeys/],
    [{ pairKeys: ["b"] }, /expert b is not loaded/],
];

test("calls with wrong rows, numbers or keys are refused", async () => {
    await withKernel({ nThreads: 1 }, async (kernel) => {
        await kernel.load("a", EXPERT);
        const right = callOf([0], ["a"]);
        for (const [change, said] of CALLS) {
            await assert.rejects(kernel.compute({ ...right, ...change }), { name: "KernelError", message: said });
        }
        const [code, multiplier] = [right.rows.slice(), right.rows.slice()];
        code[2 * packedRowBytes(SHAPE.dModel) + 5] = 0x80;
        multiplier[256] = 0x0f;
        await assert.rejects(kernel.compute({ ...right, rows: code }), /row 2 holds code -128/);
        await assert.rejects(kernel.compute({ ...right, rows: multiplier }), /row 0 holds multiplier 0/);
    });
});

test("rows that are not finite are refused by both quantisers", async () => {
    const instance = await Kx1Instance.of(await fetchModule("kx1_simd128", readBuild));
    for (const bits of [0x7f800000, 0xff800000, 0x7fc00000, 0xffffffff]) {
        const row = plainRows(1, 256, 1);
        row[200] = bits;
        assert.throws(() => packRows(row, 256), KernelError);
        assert.throws(() => instance.packRows(row, 256), KernelError);
    }
});

test("a thread that dies loses the kernel, with the reason, and nothing hangs", async () => {
    /** @type {ReturnType<typeof startThread>[]} */
    const started = [];
    const remembered = () => {
        started.push(startThread());
        return started.at(-1);
    };
    await withKernel({ startThread: remembered }, async (kernel) => {
        await kernel.load("a", EXPERT);
        started[0].kill();
        const underWay = kernel.compute(callOf([0], ["a"]));
        assert.equal(await kernel.lost, "the thread was told to die");
        await assert.rejects(underWay, KernelLostError);
        await assert.rejects(kernel.compute(callOf([0], ["a"])), KernelLostError);
        await assert.rejects(kernel.load("b", EXPERT), KernelLostError);
    });
});

test("closing fails what is under way and is not a loss", async () => {
    const kernel = await createWasmKernel({ build: "kx1_relaxed16", nThreads: 1, startThread, readBuild });
    await kernel.load("a", EXPERT);
    const underWay = kernel.compute(callOf([0], ["a"]));
    kernel.close();
    await assert.rejects(underWay, KernelLostError);
    assert.equal(await Promise.race([kernel.lost, Promise.resolve("not lost")]), "not lost");
});
