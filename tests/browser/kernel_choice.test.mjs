// Which kernel a tab takes: by measured times, by what is remembered, and what is said where there is none.

import assert from "node:assert/strict";
import test from "node:test";
import { GpuUnavailableError, KernelError, KernelMemoryError, UnsupportedBrowserError } from "/static/kvasir/errors.js";
import { BothKernel } from "/static/kvasir/kernels/both_kernel.js";
import { chooseKernel, crossing, measureKernel } from "/static/kvasir/kernels/kernel_choice.js";
import { expertBytes, KX1_FINGERPRINT, packRows } from "/static/kvasir/kernels/kx1_format.js";
import { plainRows } from "/static/kvasir/kernels/kx1_inputs.js";
import { madeExpert, selfTest } from "/static/kvasir/kernels/selftest.js";
import { createWasmKernel } from "/static/kvasir/kernels/wasm/kernel.js";
import { readBuild, startThread } from "./wasm_node.mjs";

const SHAPE = { dModel: 256, dFf: 256 };
const TYPES = { gate: "Q4_K", up: "Q4_K", down: "Q6_K" };
const EXPERT = madeExpert(TYPES, SHAPE, 7, "plain");
const WASM = { nThreads: 1, startThread, readBuild };
const BUDGET = 2 ** 26;

/** A memory whose record can be looked at. */
function memory(record = null) {
    return {
        record,
        read: async function () {
            return this.record;
        },
        write: async function (told) {
            this.record = told;
        },
    };
}

test("the GPU takes every message, none, or those from a size on", () => {
    assert.equal(crossing({ 1: 1, 8: 2, 64: 3 }, { 1: 1, 8: 8, 64: 64 }), 0);
    assert.equal(crossing({ 1: 1.9, 8: 2, 64: 3 }, { 1: 1, 8: 8, 64: 64 }), 0);
    assert.equal(crossing({ 1: 3, 8: 4, 64: 5 }, { 1: 1, 8: 8, 64: 64 }), 8);
    assert.equal(crossing({ 1: 30, 8: 30, 64: 30 }, { 1: 1, 8: 8, 64: 64 }), 64);
    assert.equal(crossing({ 1: 30, 8: 70, 64: 500 }, { 1: 1, 8: 8, 64: 64 }), Infinity);
    assert.equal(crossing({ 1: 0.5, 8: 4, 64: 65 }, { 1: 1, 8: 8, 64: 64 }), Infinity);
});

test("WebAssembly alone is chosen, tested, and its build remembered", async () => {
    const remembered = memory();
    const kernel = await chooseKernel({ budgetBytes: BUDGET, only: "wasm", wasm: WASM, remembered });
    assert.equal(kernel.backend, "wasm");
    assert.equal(kernel.capacityBytes, BUDGET);
    assert.deepEqual(remembered.record, { gpu: null, build: kernel.build, gpuFrom: null });
    kernel.close();
});

test("a remembered build is taken without measuring; one that cannot run any more is not", async () => {
    const asked = [];
    const counting = (name) => {
        asked.push(name);
        return readBuild(name);
    };
    const counted = { ...WASM, readBuild: counting };
    const options = { budgetBytes: BUDGET, only: "wasm", wasm: counted };
    const record = { gpu: null, build: "kx1_simd128", gpuFrom: null };
    const kernel = await chooseKernel({ ...options, remembered: memory(record) });
    assert.deepEqual([kernel.build, asked], ["kx1_simd128", ["kx1_simd128"]]);
    kernel.close();
    const gone = (name) => (name === "kx1_relaxed16" ? Uint8Array.of(0) : readBuild(name));
    const other = await chooseKernel({
        ...options,
        wasm: { ...WASM, readBuild: async (name) => gone(name) },
        remembered: memory({ ...record, build: "kx1_relaxed16" }),
    });
    assert.notEqual(other.build, "kx1_relaxed16");
    other.close();
});

test("where nothing runs, the message says which browsers there are", async () => {
    const nothing = { ...WASM, readBuild: async () => Uint8Array.of(0) };
    await assert.rejects(chooseKernel({ budgetBytes: BUDGET, only: "wasm", wasm: nothing }), (error) => {
        assert.ok(error instanceof UnsupportedBrowserError);
        assert.match(error.message, /WebAssembly SIMD.*Firefox from 89.*WebGPU.*Safari from 26/);
        return true;
    });
});

test("a kernel is measured at each size, and left as it was", async () => {
    const kernel = await createWasmKernel({ ...WASM, build: "kx1_simd128", maxBytes: 3 * expertBytes(EXPERT) });
    const times = await measureKernel(kernel, SHAPE);
    assert.deepEqual(Object.keys(times), ["1", "8", "64"]);
    assert.ok(Object.values(times).every((ms) => ms > 0));
    assert.equal(kernel.loadedBytes, 0);
    kernel.close();
});

/**
 * A maker of "GPUs" for `chooseKernel`, whose calls take as long as `msOf` says of their number of pairs.
 *
 * @returns {{create: Function, made: object[]}}
 */
function fakeGpus(msOf, description = "a GPU") {
    const made = [];
    const create = async ({ maxBytes, tunables }) => {
        const loaded = new Map();
        const gpu = {
            backend: "webgpu",
            name: "kx1",
            fingerprint: KX1_FINGERPRINT,
            description,
            lost: new Promise(() => {}),
            capacityBytes: maxBytes,
            loadedBytes: 0,
            tunables: tunables ?? { lanes: 8, tiledFrom: 16 },
            given: tunables,
            isClosed: false,
            nCalls: 0,
            load: async (key, weights) => void loaded.set(key, weights),
            unload: (key) => loaded.delete(key),
            compute: async ({ pairKeys, dModel }) => {
                gpu.nCalls++;
                const ms = msOf(pairKeys.length);
                if (ms > 0) await new Promise((resolve) => setTimeout(resolve, ms));
                return new Float32Array(pairKeys.length * dModel);
            },
            close: () => (gpu.isClosed = true),
        };
        made.push(gpu);
        return gpu;
    };
    return { create, made };
}

const SLOW = 200; // milliseconds: far more than the small shape takes in WebAssembly

for (const [what, msOf, backend, gpuFrom] of [
    ["a GPU that is fast throughout takes every message", () => 0, "webgpu", 0],
    ["a GPU that is slow throughout takes none", () => SLOW, "wasm", Infinity],
    ["a GPU that is fast with many pairs takes those", (n) => (n < 64 ? SLOW : 0), "both", 64],
]) {
    test(`${what}, and the next start knows`, async () => {
        const gpus = fakeGpus(msOf);
        const remembered = memory();
        const options = { budgetBytes: BUDGET, shape: SHAPE, wasm: WASM, remembered, createGpu: gpus.create };
        const first = await chooseKernel(options);
        assert.equal(first.backend, backend);
        assert.equal(gpus.made[0].isClosed, backend === "wasm");
        assert.equal(remembered.record.gpuFrom, gpuFrom);
        assert.ok(gpus.made[0].nCalls > 0);
        const second = await chooseKernel(options);
        assert.equal(second.backend, backend);
        assert.deepEqual([gpus.made[1].nCalls, gpus.made[1].given], [0, { lanes: 8, tiledFrom: 16 }]);
        for (const kernel of [first, second]) kernel.close();
    });
}

test("another GPU than the remembered one is measured anew", async () => {
    const older = { description: "an older GPU", tunables: { lanes: 2, tiledFrom: 8 } };
    const [gpus, remembered] = [fakeGpus(() => SLOW), memory({ gpu: older, build: null, gpuFrom: 0 })];
    const options = { budgetBytes: BUDGET, shape: SHAPE, wasm: WASM, remembered };
    const kernel = await chooseKernel({ ...options, createGpu: gpus.create });
    assert.equal(kernel.backend, "wasm");
    assert.deepEqual(
        gpus.made.map((gpu) => gpu.isClosed),
        [true, true],
    );
    assert.equal(remembered.record.gpu.description, "a GPU");
    kernel.close();
});

test("the test switch takes the GPU alone, and is not remembered", async () => {
    const [gpus, remembered] = [fakeGpus(() => SLOW), memory()];
    const options = { budgetBytes: BUDGET, software: true, wasm: WASM, remembered };
    const kernel = await chooseKernel({ ...options, createGpu: gpus.create });
    assert.deepEqual([kernel.backend, remembered.record], ["webgpu", null]);
});

test("a GPU that cannot be used leaves WebAssembly, and the reason is told", async () => {
    for (const error of [new GpuUnavailableError("no adapter"), new KernelError("failed its self-test")]) {
        const told = [];
        const createGpu = async () => Promise.reject(error);
        const options = { budgetBytes: BUDGET, wasm: WASM, report: (reason) => told.push(reason) };
        const kernel = await chooseKernel({ ...options, createGpu });
        assert.deepEqual([kernel.backend, told], ["wasm", [error]]);
        kernel.close();
    }
    const broken = async () => Promise.reject(new TypeError("a bug"));
    await assert.rejects(chooseKernel({ budgetBytes: BUDGET, wasm: WASM, createGpu: broken }), TypeError);
});

/** Two kernels in one, the first as if it were the GPU. */
async function bothKernels(gpuFrom, budgetBytes) {
    const gpu = await createWasmKernel({ ...WASM, build: "kx1_simd128" });
    const wasm = await createWasmKernel({ ...WASM, build: "kx1_relaxed16" });
    return new BothKernel(gpu, wasm, gpuFrom, budgetBytes);
}

test("a kernel of two computes small messages in one and large ones in the other, with the same bits", async () => {
    const both = await bothKernels(3, BUDGET);
    assert.equal((await selfTest(both)).fingerprint, KX1_FINGERPRINT);
    await both.load("a", EXPERT);
    assert.equal(both.loadedBytes, expertBytes(EXPERT));
    const used = [];
    for (const half of ["gpu", "wasm"]) {
        const compute = both[half].compute.bind(both[half]);
        both[half].compute = (call) => {
            used.push(half);
            return compute(call);
        };
    }
    const rows = packRows(plainRows(3, SHAPE.dModel, 3), SHAPE.dModel);
    const call = (n) => ({
        rows,
        nRows: 3,
        dModel: SHAPE.dModel,
        pairRows: Uint32Array.from({ length: n }, (_, i) => i),
        pairKeys: Array(n).fill("a"),
    });
    const [two, three] = [await both.compute(call(2)), await both.compute(call(3))];
    assert.deepEqual(used, ["wasm", "gpu"]);
    assert.deepEqual(three.subarray(0, two.length), two);
    both.close();
});

test("a kernel of two holds half of the budget, and nothing where one half has no room", async () => {
    const needed = expertBytes(EXPERT);
    const both = await bothKernels(3, 3 * needed);
    await both.load("a", EXPERT);
    await assert.rejects(both.load("b", EXPERT), (error) => {
        assert.ok(error instanceof KernelMemoryError);
        assert.deepEqual([error.needed, error.available], [needed, 0.5 * needed]);
        return true;
    });
    both.unload("a");
    both.gpu.capacityBytes = 0;
    await assert.rejects(both.load("b", EXPERT), KernelMemoryError);
    assert.deepEqual([both.wasm.loadedBytes, both.gpu.loadedBytes], [0, 0]);
    both.close();
});
