/**
 * One matrix at a time on the GPU, for the golden vectors of single matrices: the shaders of the kernel, two steps.
 */

import { writePadded } from "/static/kvasir/kernels/gpu/arenas.js";
import { openGpuDevice } from "/static/kvasir/kernels/gpu/device.js";
import { GpuPrograms, NEVER, readSources, SHAPE_BYTES } from "/static/kvasir/kernels/gpu/programs.js";
import { packedRowBytes, packRows, weightExponent } from "/static/kvasir/kernels/kx1_format.js";
import { adversarialRows, madeWeights, plainRows } from "/static/kvasir/kernels/kx1_inputs.js";
import { sha256 } from "/static/kvasir/kernels/selftest.js";

const [MAP_READ, COPY_SRC, COPY_DST, UNIFORM, STORAGE] = [0x01, 0x04, 0x08, 0x40, 0x80];
const SHAPE_STRIDE = 256;

/** Names of golden matrices of one type whose outputs differ, and how many there are. */
export async function checkMatrices(type) {
    const { cases } = await (await fetch("/golden/kx1/vectors.json")).json();
    const bytes = await (await fetch("/golden/kx1/vectors.bin")).arrayBuffer();
    const gpu = await openMatmul(type);
    const mine = cases.filter((each) => each.kind.startsWith("matmul") && each.type === type);
    const wrong = [];
    for (const each of mine) {
        const wanted = each.sha256 ?? (await sha256(arrayOf(each.arrays.outputs, bytes)));
        const weights = each.arrays.weights
            ? arrayOf(each.arrays.weights, bytes)
            : madeWeights(type, each.n_out, each.n_in, each.seed, each.weights);
        const found = await gpu.multiply(weights, each.n_out, each.n_in, packRows(goldenRows(each.n_in), each.n_in));
        if ((await sha256(found)) !== wanted) wrong.push(`${each.kind} ${each.name}`);
    }
    gpu.device.destroy();
    return { wrong, n: mine.length };
}

function arrayOf({ dtype, offset, shape }, bytes) {
    const n = shape.reduce((product, size) => product * size, 1);
    return dtype === "u8" ? new Uint8Array(bytes, offset, n) : new Uint32Array(bytes, offset, n);
}

function goldenRows(cols) {
    const rows = new Uint32Array(20 * cols);
    rows.set(adversarialRows(cols, cols));
    rows.set(plainRows(3, cols, cols + 1), 17 * cols);
    return rows;
}

async function openMatmul(type) {
    const { device } = await openGpuDevice({ software: true });
    const programs = new GpuPrograms(device, await readSources(), "dot_packed", { lanes: 8, tiledFrom: NEVER });
    await Promise.all([programs.compileFrame(), programs.compile([type])]);
    return { device, multiply: (...given) => multiply(programs, type, ...given) };
}

/** Outputs of all rows, as bits: pairs in fours, the last one alone. */
async function multiply(programs, type, weights, nOut, nIn, packed) {
    const { device } = programs;
    const nBlocks = nIn / 256;
    const nRows = packed.length / packedRowBytes(nIn);
    const buffer = (size, usage) => device.createBuffer({ size: Math.ceil(size / 16) * 16, usage });
    const filled = (data, usage = STORAGE) => {
        const made = buffer(data.byteLength + 8, usage | COPY_DST);
        writePadded(device.queue, made, 0, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
        return made;
    };
    const pairs = filled(Uint32Array.from({ length: 2 * nRows }, (_, i) => i >> 1));
    const nFours = Math.floor((nRows - 1) / 4);
    const starts = [...Array.from({ length: nFours }, (_, i) => 4 * i), ...rest(4 * nFours, nRows)];
    const exponent = weightExponent(type, weights);
    const tasks = filled(
        Uint32Array.from(starts.flatMap((start, i) => [0, exponent, start, i < nFours ? 4 : 1, 0, 0, 0, 0])),
    );
    const rowBytes = weights.length / nOut;
    const shapes = new Uint32Array((3 * SHAPE_STRIDE) / 4);
    shapes.set([nBlocks], 0);
    shapes.set([nBlocks, nOut, rowBytes, nOut, 0], SHAPE_STRIDE / 4);
    shapes.set([nBlocks, nOut, rowBytes, nOut, nFours], (2 * SHAPE_STRIDE) / 4);
    const activations = buffer(nRows * nBlocks * 76 * 4, STORAGE);
    const outputs = buffer(nRows * nOut * 4, STORAGE | COPY_SRC);
    const steps = [
        ["unpack_rows", [tasks, filled(packed), activations], nRows, 1],
        [`matvec_4 ${type}`, [filled(weights), activations, outputs], Math.ceil(nOut / 8), nFours],
        [`matvec_1 ${type}`, [filled(weights), activations, outputs], Math.ceil(nOut / 8), starts.length - nFours],
    ];
    return run(programs, steps, { tasks, pairs, shapes: filled(shapes, UNIFORM), outputs });
}

function rest(first, stop) {
    return Array.from({ length: stop - first }, (_, i) => first + i);
}

async function run({ device, layout, ...programs }, steps, { tasks, pairs, shapes, outputs }) {
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    steps.forEach(([name, buffers, x, y], i) => {
        const entries = [...buffers, tasks, pairs].map((buffer, binding) => ({ binding, resource: { buffer } }));
        entries.push({ binding: 5, resource: { buffer: shapes, size: SHAPE_BYTES } });
        pass.setPipeline(programs.ready.get(name));
        pass.setBindGroup(0, device.createBindGroup({ layout, entries }), [i * SHAPE_STRIDE]);
        pass.dispatchWorkgroups(x, y);
    });
    pass.end();
    const readback = device.createBuffer({ size: outputs.size, usage: MAP_READ | COPY_DST });
    encoder.copyBufferToBuffer(outputs, 0, readback, 0, outputs.size);
    device.queue.submit([encoder.finish()]);
    await readback.mapAsync(1);
    return new Uint32Array(readback.getMappedRange().slice(0));
}
