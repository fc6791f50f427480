/**
 * What tests/browser/test_gpu_kernel.py asks of the GPU kernel in a page; every function returns plain values.
 */

import { callAll, differences, goldenExperts, goldenHashes, sha256 } from "/expert_vectors.js";
import { createGpuKernel } from "/static/kvasir/kernels/gpu/kernel.js";
import { KX1_FINGERPRINT } from "/static/kvasir/kernels/kx1_format.js";

const CAPACITY = 16 * 1024 * 1024;
/** @type {Promise<import("../../../frontend/static/kvasir/kernels/gpu/backend.js").GpuKernel> | null} */
let made = null;

function kernel() {
    made ??= createGpuKernel({ software: true, maxBytes: CAPACITY });
    return made;
}

export async function describe() {
    const { backend, name, fingerprint, description, capacityBytes, loadedBytes } = await kernel();
    return { backend, name, isRight: fingerprint === KX1_FINGERPRINT, description, capacityBytes, loadedBytes };
}

/** Differences of all outputs, and of two pairs alone, for each golden expert. */
export async function golden() {
    const found = {};
    for (const each of await goldenExperts()) found[each.name] = await compareGolden(await kernel(), each);
    return found;
}

async function compareGolden(gpu, each) {
    await gpu.load(each.name, each.weights);
    const found = await compareLoaded(gpu, each);
    gpu.unload(each.name);
    return found;
}

async function compareLoaded(gpu, each) {
    const { name, weights, nRows, outputs } = each;
    const all = differences(await gpu.compute(callAll(each, name)), outputs);
    const some = { ...callAll(each, name), pairRows: Uint32Array.of(nRows - 1, 3), pairKeys: [name, name] };
    const few = await gpu.compute(some);
    const wanted = [nRows - 1, 3].flatMap((row) => [
        ...outputs.subarray(row * weights.dModel, (row + 1) * weights.dModel),
    ]);
    return [all, differences(few, Uint32Array.from(wanted))];
}

/** Names of full-shape experts whose outputs have another hash. */
export async function fullShape() {
    const gpu = await kernel();
    const wrong = [];
    for (const { name, weights, packed, nRows, hash } of await goldenHashes()) {
        await gpu.load(name, weights);
        const outputs = await gpu.compute(callAll({ packed, nRows, weights }, name));
        if ((await sha256(outputs)) !== hash) wrong.push(name);
        gpu.unload(name);
    }
    return wrong;
}

/** Eight calls at once over two experts, in any order of pairs: differences of each from the calls alone. */
export async function underWay() {
    const gpu = await kernel();
    const [first, second] = [...(await goldenExperts())].filter((each) => each.weights.dModel === 512);
    await gpu.load("a", first.weights);
    await gpu.load("b", second.weights);
    const calls = Array.from({ length: 8 }, (_, i) => mixedCall(first, i));
    const computed = await Promise.all(calls.map((call) => gpu.compute(call)));
    const found = [];
    for (const [i, call] of calls.entries()) {
        const alone = await gpu.compute({
            ...call,
            pairRows: call.pairRows.slice(0, 2),
            pairKeys: call.pairKeys.slice(0, 2),
        });
        found.push(differences(computed[i].slice(0, alone.length), new Uint32Array(alone.buffer)));
    }
    gpu.unload("a");
    gpu.unload("b");
    return found;
}

function mixedCall({ packed, nRows }, seed) {
    const n = 3 + 4 * seed;
    return {
        rows: packed,
        nRows,
        dModel: 512,
        pairRows: Uint32Array.from({ length: n }, (_, i) => (7 * i + seed) % nRows),
        pairKeys: Array.from({ length: n }, (_, i) => ((i + seed) % 3 ? "a" : "b")),
    };
}

/** An expert is unloaded, and its place taken by another, while a call with it is under way. */
export async function unloadUnderWay() {
    const gpu = await kernel();
    const [each] = await goldenExperts();
    const other = (await goldenExperts())[2];
    await gpu.load("old", each.weights);
    const call = gpu.compute(callAll(each, "old", 4));
    gpu.unload("old");
    await gpu.load("new", other.weights);
    const found = [differences(await call, each.outputs)];
    found.push(differences(await gpu.compute(callAll(other, "new")), other.outputs));
    gpu.unload("new");
    return [...found, gpu.loadedBytes, gpu.arenas.reservedBytes];
}

/** What each refusal says. */
export async function refusals() {
    const gpu = await kernel();
    const [each] = await goldenExperts();
    const call = callAll(each, "there");
    await gpu.load("there", each.weights);
    const infinite = { ...each.weights, down: each.weights.down.slice() };
    infinite.down.set([0x00, 0x7c], 208);
    const badCode = each.packed.slice();
    badCode[5] = 0x80;
    const attempts = {
        again: gpu.load("there", each.weights),
        scale: gpu.load("infinite", infinite),
        type: gpu.load("typed", { ...each.weights, types: { ...each.weights.types, up: "Q4_0" } }),
        short: gpu.load("short", { ...each.weights, up: each.weights.up.subarray(4) }),
        key: gpu.compute({ ...call, pairKeys: call.pairKeys.map(() => "nowhere") }),
        row: gpu.compute({ ...call, pairRows: call.pairRows.map(() => each.nRows) }),
        code: gpu.compute({ ...call, rows: badCode }),
        width: gpu.compute({ ...call, rows: call.rows.subarray(0, call.rows.length / 2), dModel: 256 }),
    };
    const said = {};
    for (const [name, attempt] of Object.entries(attempts)) said[name] = await failureOf(attempt);
    said.after = String(differences(await gpu.compute(call), each.outputs));
    said.none = String((await gpu.compute({ ...call, pairRows: new Uint32Array(0), pairKeys: [] })).length);
    gpu.unload("there");
    gpu.unload("never there");
    return said;
}

async function failureOf(promise) {
    return promise.then(
        () => "nothing",
        (error) => `${error.name}: ${error.message}`,
    );
}

/** Fill a kernel until there is no room; what is loaded still computes, and room that is given back is used. */
export async function memory() {
    const gpu = await kernel();
    const [each] = await goldenExperts();
    const bytes = each.weights.gate.length + each.weights.up.length + each.weights.down.length;
    let n = 0;
    let error = null;
    while (!error && n < 1000)
        error = await gpu.load(`e${n}`, each.weights).then(
            () => {
                n++;
                return null;
            },
            (reason) => reason,
        );
    const found = { name: error?.name, needed: error?.needed, available: error?.available, n, loaded: gpu.loadedBytes };
    found.last = differences(await gpu.compute(callAll(each, `e${n - 1}`)), each.outputs);
    gpu.unload("e0");
    await gpu.load("once more", each.weights);
    found.again = differences(await gpu.compute(callAll(each, "once more")), each.outputs);
    for (let i = 0; i < n; i++) gpu.unload(`e${i}`);
    gpu.unload("once more");
    return { ...found, bytes, capacity: gpu.capacityBytes, left: gpu.loadedBytes, reserved: gpu.arenas.reservedBytes };
}

/** The programs for many pairs, on two types: golden outputs of 23 pairs and of 46, cut into small submissions. */
export async function tiled() {
    const { GpuKernel } = await import("/static/kvasir/kernels/gpu/backend.js");
    const { openGpuDevice } = await import("/static/kvasir/kernels/gpu/device.js");
    const { readSources } = await import("/static/kvasir/kernels/gpu/programs.js");
    const tunables = { lanes: 1, tiledFrom: 20 };
    const options = { dot: "dot_plain", tunables, maxBytes: CAPACITY, nInFlight: 2 };
    const gpu = new GpuKernel(await openGpuDevice({ software: true }), await readSources(), options);
    gpu.limits.maxWork = 2 ** 20; // a submission for a few pairs, and a task in several dispatches
    await gpu.compile(["Q4_K", "Q6_K"]);
    const found = {};
    for (const each of await goldenExperts()) {
        if (!/^Q[46]_K Q[46]_K Q[46]_K/.test(each.name)) continue;
        await gpu.load(each.name, each.weights);
        const twice = differences(await gpu.compute(callAll(each, each.name, 2)), each.outputs);
        found[each.name] = [...(await compareLoaded(gpu, each)), twice];
    }
    gpu.close();
    return found;
}

/** What a measurement chooses here, on small experts. */
export async function measured() {
    const { openGpuDevice } = await import("/static/kvasir/kernels/gpu/device.js");
    const { readSources } = await import("/static/kvasir/kernels/gpu/programs.js");
    const { measureTunables } = await import("/static/kvasir/kernels/gpu/tunables.js");
    const opened = await openGpuDevice({ software: true });
    const chosen = await measureTunables(opened, await readSources(), "dot_packed", { dModel: 256, dFf: 256 });
    opened.device.destroy();
    return chosen;
}

/** Experts of every type on the GPU and in WebAssembly: differences between the two. */
export async function sameAsWasm() {
    const { createWasmKernel } = await import("/static/kvasir/kernels/wasm/kernel.js");
    const { madeExpert } = await import("/static/kvasir/kernels/selftest.js");
    const { legalPackedRows } = await import("/static/kvasir/kernels/kx1_inputs.js");
    const [gpu, wasm] = [await kernel(), await createWasmKernel({ nThreads: 2 })];
    const shape = { dModel: 768, dFf: 512 };
    const types = ["Q4_K", "Q5_K", "Q6_K", "Q8_0"];
    const found = {};
    for (const [i, type] of types.entries()) {
        for (const kind of ["plain", "wild", "high"]) {
            const mixed = { gate: type, up: types[(i + 1) % 4], down: types[(i + 2) % 4] };
            const weights = madeExpert(mixed, shape, 7000 + i, kind);
            const call = callAll({ packed: legalPackedRows(768, 7100 + i), nRows: 3, weights }, "same", 2);
            const [one, other] = await Promise.all([gpu, wasm].map((each) => computeOnce(each, weights, call)));
            found[`${type} ${kind}`] = differences(one, new Uint32Array(other.buffer));
        }
    }
    wasm.close();
    return found;
}

async function computeOnce(kernelOfEither, weights, call) {
    await kernelOfEither.load("same", weights);
    const outputs = await kernelOfEither.compute(call);
    kernelOfEither.unload("same");
    return outputs;
}

/** What a page is told that does not allow a software adapter. */
export async function withoutSwitch() {
    return failureOf(createGpuKernel({ software: false, maxBytes: CAPACITY }));
}

/** Begin calls that the test cuts by a crash of the GPU process. */
export async function beginCalls() {
    const gpu = await kernel();
    const [each] = await goldenExperts();
    await gpu.load("cut", each.weights);
    await gpu.compute(callAll(each, "cut"));
    globalThis.cut = { lost: "", said: null };
    void gpu.lost.then((reason) => (globalThis.cut.lost = reason));
    const calls = Array.from({ length: 8 }, () => gpu.compute(callAll(each, "cut", 40)));
    globalThis.cut.calls = Promise.all(calls.map(failureOf)).then((said) => (globalThis.cut.said = said));
}

/** After the crash: what an old kernel says, and differences of a new one, made with a damaged memory of tunables. */
export async function afterCrash() {
    const old = await kernel();
    const [each] = await goldenExperts();
    const said = [await failureOf(old.compute(callAll(each, "cut"))), await failureOf(old.load("x", each.weights))];
    old.close();
    made = createGpuKernel({ software: true, maxBytes: CAPACITY, tunables: { lanes: 3, tiledFrom: null } });
    const { tunables } = await made;
    return { said, tunables, differences: await compareGolden(await made, each) };
}

/** A kernel of this page, whose shaders the test has changed: what it says of itself, or why there is none. */
export async function describeOrRefuse() {
    return createGpuKernel({ software: true, maxBytes: CAPACITY }).then(
        (gpu) => gpu.description,
        (error) => `${error.name}: ${error.message}`,
    );
}
