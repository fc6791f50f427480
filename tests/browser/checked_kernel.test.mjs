// A kernel that is checked while it works: at random times, by the self-test and by fresh numbers; what a fault does.

import assert from "node:assert/strict";
import test from "node:test";
import { KernelError, KernelLostError, KernelMemoryError } from "/static/kvasir/errors.js";
import { BothKernel } from "/static/kvasir/kernels/both_kernel.js";
import { CHECK_BYTES, CheckedKernel, checkKernel, LEAST_S, MOST_S } from "/static/kvasir/kernels/checked_kernel.js";
import { expertBytes, KX1_FINGERPRINT, packRows } from "/static/kvasir/kernels/kx1_format.js";
import { plainRows } from "/static/kvasir/kernels/kx1_inputs.js";
import { madeExpert } from "/static/kvasir/kernels/selftest.js";
import { createWasmKernel } from "/static/kvasir/kernels/wasm/kernel.js";
import { readBuild, startThread } from "./wasm_node.mjs";

const SHAPE = { dModel: 256, dFf: 256 };
const EXPERT = madeExpert({ gate: "Q4_K", up: "Q4_K", down: "Q6_K" }, SHAPE, 7, "plain");
const CALL = {
    rows: packRows(plainRows(1, 256, 3), 256),
    nRows: 1,
    dModel: 256,
    pairRows: Uint32Array.of(0),
    pairKeys: ["a"],
};
const NEVER = new Promise(() => {});

const made = (build = "kx1_relaxed16") =>
    createWasmKernel({ build, nThreads: 1, startThread, readBuild, maxBytes: 4 * CHECK_BYTES });

/** Make the last value of calls wrong in one bit, of those that `isWrong` chooses. */
function spoil(kernel, isWrong) {
    const compute = kernel.compute.bind(kernel);
    kernel.compute = async (call) => {
        const outputs = await compute(call);
        if (isWrong(call)) new Uint32Array(outputs.buffer)[outputs.length - 1] ^= 1;
        return outputs;
    };
    return kernel;
}

/** Sleeps that a test ends one by one, and how long each was to be. */
function sleeps() {
    const told = [];
    let wake = () => {};
    const sleep = (seconds) => {
        told.push(seconds);
        return new Promise((resolve) => {
            wake = resolve;
        });
    };
    return { told, sleep, wake: () => wake() };
}

/** Let everything that is ready run. */
const settle = () => new Promise((resolve) => setImmediate(resolve));

test("fresh numbers of every type and kind pass, and nothing is left in the kernel", async () => {
    const kernel = await made();
    for (let seed = 0; seed < 16; seed++) await checkKernel(kernel, 2 ** 31 - 1 - seed, readBuild);
    assert.equal(kernel.loadedBytes, 0);
    kernel.close();
});

test("one wrong bit with fresh numbers alone is found and named", async () => {
    const kernel = spoil(await made(), ({ pairKeys }) => pairKeys[0].startsWith("fresh"));
    const said = { name: "KernelError", message: /other bits than WebAssembly .*seed 5, Q5_K Q5_K Q5_K, value \d+/ };
    await assert.rejects(checkKernel(kernel, 5, readBuild), said);
    assert.equal(kernel.loadedBytes, 0);
    kernel.close();
});

test("of a kernel of two each half is checked, whichever takes small messages", async () => {
    for (const spoilt of [0, 1]) {
        const halves = [await made(), await made("kx1_simd128")];
        spoil(halves[spoilt], () => true);
        const both = new BothKernel(halves[0], halves[1], 64, 4 * CHECK_BYTES);
        await assert.rejects(checkKernel(both, 1, readBuild), /failed its self-test/);
        both.close();
    }
});

test("a witness that does not come is not the kernel's fault", async () => {
    const kernel = await made();
    const away = async () => Promise.reject(new KernelError("kx1_simd128.wasm could not be fetched: 503"));
    await assert.rejects(checkKernel(kernel, 1, away), (error) => !(error instanceof KernelError));
    const { sleep, wake, told } = sleeps();
    const checked = new CheckedKernel(kernel, { sleep, check: (...of) => checkKernel(...of, away) });
    wake();
    while (told.length < 2) await settle();
    assert.equal(checked.fault, "");
    checked.close();
});

test("checks come at random times with random seeds, for as long as the kernel is open", async () => {
    const { told, sleep, wake } = sleeps();
    const seeds = [];
    const dice = [0, 0.25, 0.999, 0.5, 0.5];
    const kernel = await made();
    const checked = new CheckedKernel(kernel, {
        sleep,
        random: () => dice.shift(),
        check: async (of, seed) => void seeds.push(of === kernel && seed),
    });
    for (const n of [1, 2]) {
        wake();
        while (checked.nChecks < n) await settle();
    }
    assert.deepEqual(told.map(Math.round), [
        LEAST_S,
        Math.round(LEAST_S + 0.999 * (MOST_S - LEAST_S)),
        (LEAST_S + MOST_S) / 2,
    ]);
    assert.deepEqual(seeds, [2 ** 29, 2 ** 30]);
    checked.close();
    wake();
    await settle();
    assert.equal(seeds.length, 2);
    assert.equal(await Promise.race([checked.lost, Promise.resolve("not lost")]), "not lost");
});

test("a kernel that fails a check is lost, and no output leaves it, not even of calls under way", async () => {
    const { sleep, wake } = sleeps();
    const kernel = await made();
    const checked = new CheckedKernel(kernel, { sleep, check: (...of) => checkKernel(...of, readBuild) });
    await checked.load("a", EXPERT);
    assert.equal((await checked.compute(CALL)).length, 256);
    const compute = kernel.compute.bind(kernel);
    let finish = () => {};
    kernel.compute = async (call) => {
        await new Promise((resolve) => {
            finish = resolve;
        });
        return compute(call);
    };
    const underWay = checked.compute(CALL);
    kernel.compute = spoil({ compute }, () => true).compute;
    wake();
    assert.match(await checked.lost, /failed its self-test/);
    finish();
    await assert.rejects(underWay, { name: "KernelLostError", message: /failed its self-test/ });
    await assert.rejects(checked.compute(CALL), KernelLostError);
    checked.close();
});

test("a kernel that dies is lost as ever", async () => {
    const threads = [];
    const start = () => {
        threads.push(startThread());
        return threads.at(-1);
    };
    const kernel = await createWasmKernel({ build: "kx1_simd128", nThreads: 1, startThread: start, readBuild });
    const checked = new CheckedKernel(kernel, { sleep: () => NEVER });
    threads[0].kill();
    assert.equal(await checked.lost, "the thread was told to die");
    checked.close();
});

test("room for a check is kept, and experts of others alone are counted", async () => {
    const kernel = await made();
    const checked = new CheckedKernel(kernel, { sleep: () => NEVER });
    assert.deepEqual(
        [checked.capacityBytes, checked.backend, checked.fingerprint],
        [3 * CHECK_BYTES, "wasm", KX1_FINGERPRINT],
    );
    const size = expertBytes(EXPERT);
    const n = Math.floor((3 * CHECK_BYTES) / size);
    for (let i = 0; i < n; i++) await checked.load(`${i}`, EXPERT);
    await assert.rejects(checked.load("more", EXPERT), (error) => {
        assert.ok(error instanceof KernelMemoryError);
        assert.deepEqual([error.needed, error.available], [size, 3 * CHECK_BYTES - n * size]);
        return true;
    });
    const underWay = checkKernel(kernel, 3, readBuild);
    assert.equal(checked.loadedBytes, n * size);
    await underWay;
    checked.unload("0");
    await checked.load("more", EXPERT);
    checked.close();
});
