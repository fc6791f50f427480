// The WebAssembly half of `wasm_speed.py`, in node: reads a request a line, answers a line.
//
// {op: "load", types, shape, nExperts, builds} makes experts (expert e has seed 100 e) in an instance of each build;
// {op: "run", build, rows, experts} computes all rows by each of the experts, and says how long it took; {op: "vectors",
// build} says which golden vectors a build misses. `wasm_speed.py` starts node so that pages' paths lead to files.

import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";

const KERNELS = new URL("../../frontend/static/kvasir/kernels/", import.meta.url);
const { packedRowBytes, weightExponents } = await import(new URL("kx1_format.js", KERNELS));
const { plainRows } = await import(new URL("kx1_inputs.js", KERNELS));
const { packRows } = await import(new URL("kx1_format.js", KERNELS));
const { madeExpert } = await import(new URL("selftest.js", KERNELS));
const { Kx1Instance } = await import(new URL("wasm/instance.js", KERNELS));
const { checkVectors } = await import(new URL("../../tests/browser/pages/kx1_vectors.js", import.meta.url));

const GOLDEN = new URL("../../tests/golden/kx1/", import.meta.url);

const MOST_ROWS = 64;
const state = { shape: null, rows: null, builds: new Map() };

/** Builds that this engine does not take are left out. */
async function load({ types, shape, nExperts, builds }) {
    state.shape = shape;
    state.rows = packRows(plainRows(MOST_ROWS, shape.dModel, 1), shape.dModel);
    const experts = Array.from({ length: nExperts }, (_, e) => madeExpert(types, shape, 100 * e, "plain"));
    for (const name of builds) {
        const bytes = await readFile(new URL(`wasm/${name}.wasm`, KERNELS));
        if (!WebAssembly.validate(bytes)) continue;
        const instance = await Kx1Instance.of(await WebAssembly.compile(bytes));
        state.builds.set(name, { instance, loaded: experts.map((e) => instance.load(e, weightExponents(e))) });
    }
    return { builds: [...state.builds.keys()] };
}

function run({ build, rows, experts }) {
    const { instance, loaded } = state.builds.get(build);
    const packed = state.rows.subarray(0, rows * packedRowBytes(state.shape.dModel));
    const outputs = new Float32Array(rows * state.shape.dModel);
    const hash = createHash("sha256");
    let us = 0;
    for (const expert of experts) {
        const start = process.threadCpuUsage();
        instance.compute(loaded[expert], packed, outputs);
        const { user, system } = process.threadCpuUsage(start);
        us += user + system;
        hash.update(new Uint8Array(outputs.buffer));
    }
    return { us, sha256: hash.digest("hex") };
}

async function vectors({ build }) {
    const { cases } = JSON.parse(await readFile(new URL("vectors.json", GOLDEN), "utf8"));
    const file = await readFile(new URL("vectors.bin", GOLDEN));
    const bytes = file.buffer.slice(file.byteOffset, file.byteOffset + file.length);
    return checkVectors({ cases, bytes }, state.builds.get(build).instance);
}

const OPS = { load, run, vectors };
for await (const line of createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    const reply = await OPS[request.op](request);
    process.stdout.write(`${JSON.stringify(reply)}\n`);
}
