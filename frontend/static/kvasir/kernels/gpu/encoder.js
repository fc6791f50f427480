/**
 * Commands for one chunk of a call: uploads, the five steps of `wgsl/README.md`, and the copy that is read back.
 *
 * Called by `gpu/backend.js`. It only fills queues: it waits for nothing and reads nothing.
 */

import { BLOCK, packedRowBytes } from "../kx1_format.js";
import { writePadded } from "./arenas.js";
import { SHAPE_BYTES } from "./programs.js";

/** @import { Chunk } from "./plan.js" */
/** @import { Dispatch } from "./dispatches.js" */
/** @import { GpuPrograms } from "./programs.js" */
/** @import { SlotSet } from "./slot_sets.js" */

const ACTIVATION_BYTES = 76 * 4; // of a block
const SHAPE_STRIDE = 256; // minUniformBufferOffsetAlignment, at most

/** @typedef {{name: string, shape: number[], buffers: GPUBuffer[], x: number, y: number, work: number}} Step */

/**
 * Submit a chunk. Returns the buffer that will hold its outputs, [pairs, dModel] from the start, and their bytes.
 *
 * @param {GpuPrograms} programs compiled
 * @param {SlotSet} set free
 * @param {Chunk} chunk
 * @param {Uint8Array} rows the call's packed rows
 * @param {number} maxWork weights times pairs of one submission, at most
 * @returns {{readback: GPUBuffer, bytes: number}}
 */
export function submitChunk(programs, set, chunk, rows, maxWork) {
    const { device } = programs;
    const steps = makeSteps(set, chunk);
    upload(device.queue, set, chunk, rows, steps);
    const bytes = chunk.pairs.length * chunk.dModel * 4;
    const readback = set.fit("readback", bytes);
    const parts = splitWork(steps, maxWork);
    let number = 0;
    parts.forEach((part, index) => {
        const encoder = device.createCommandEncoder();
        encodeSteps(encoder.beginComputePass(), programs, set, part, number);
        number += part.length;
        if (index === parts.length - 1) encoder.copyBufferToBuffer(set.fit("outputs", bytes), 0, readback, 0, bytes);
        device.queue.submit([encoder.finish()]);
    });
    return { readback, bytes };
}

/**
 * @param {SlotSet} set
 * @param {Chunk} chunk
 * @returns {Step[]}
 */
function makeSteps(set, chunk) {
    const { dModel, dFf, rows, pairs, taskTable } = chunk;
    const [modelBlocks, ffBlocks] = [dModel / BLOCK, dFf / BLOCK];
    const tasks = set.fit("tasks", taskTable.byteLength);
    const packed = set.fit("packed", rows.length * packedRowBytes(dModel) + 8);
    const rowActivations = set.fit("rowActivations", rows.length * modelBlocks * ACTIVATION_BYTES);
    const gateUp = set.fit("gateUp", pairs.length * 2 * dFf * 4);
    const slotActivations = set.fit("slotActivations", pairs.length * ffBlocks * ACTIVATION_BYTES);
    const outputs = set.fit("outputs", pairs.length * dModel * 4);
    /** @type {(dispatch: Dispatch, from: GPUBuffer, to: GPUBuffer) => Step} */
    const multiply = ({ program, type, arena, shape, x, y, work }, from, to) => {
        return { name: `${program} ${type}`, shape, buffers: [arena.buffer, from, to], x, y, work };
    };
    /** @type {(name: string, nBlocks: number, from: GPUBuffer, to: GPUBuffer, x: number) => Step} */
    const convert = (name, nBlocks, from, to, x) => {
        return { name, shape: [nBlocks, 0, 0, 0, 0, 0, 0, 0], buffers: [tasks, from, to], x, y: 1, work: 0 };
    };
    return [
        convert("unpack_rows", modelBlocks, packed, rowActivations, rows.length),
        ...chunk.gateUp.map((dispatch) => multiply(dispatch, rowActivations, gateUp)),
        convert("silu_quantise", ffBlocks, gateUp, slotActivations, pairs.length),
        ...chunk.down.map((dispatch) => multiply(dispatch, slotActivations, outputs)),
    ];
}

/**
 * @param {GPUQueue} queue
 * @param {SlotSet} set
 * @param {Chunk} chunk
 * @param {Uint8Array} rows
 * @param {Step[]} steps
 */
function upload(queue, set, chunk, rows, steps) {
    const used = gatherRows(rows, chunk.rows, packedRowBytes(chunk.dModel));
    writePadded(queue, set.fit("packed", used.length + 8), 0, used);
    queue.writeBuffer(set.fit("tasks", chunk.taskTable.byteLength), 0, chunk.taskTable);
    queue.writeBuffer(set.fit("pairs", chunk.pairTable.byteLength), 0, chunk.pairTable);
    const shapes = new Uint32Array((steps.length * SHAPE_STRIDE) / 4);
    for (const [i, step] of steps.entries()) shapes.set(step.shape, (i * SHAPE_STRIDE) / 4);
    queue.writeBuffer(set.fit("shapes", shapes.byteLength), 0, shapes);
}

/**
 * The packed rows of these numbers, without a copy when they are all rows from the first on.
 *
 * @param {Uint8Array} rows
 * @param {number[]} numbers ascending
 * @param {number} rowBytes
 */
function gatherRows(rows, numbers, rowBytes) {
    if (numbers[numbers.length - 1] === numbers.length - 1) return rows.subarray(0, numbers.length * rowBytes);
    const gathered = new Uint8Array(numbers.length * rowBytes);
    for (const [i, row] of numbers.entries()) {
        gathered.set(rows.subarray(row * rowBytes, (row + 1) * rowBytes), i * rowBytes);
    }
    return gathered;
}

/**
 * Lists of steps for one submission each: a system may reset a GPU that works on one for seconds.
 *
 * @param {Step[]} steps
 * @param {number} maxWork
 */
function splitWork(steps, maxWork) {
    /** @type {Step[][]} */
    const parts = [[]];
    let work = 0;
    for (const step of steps) {
        if (work > 0 && work + step.work > maxWork) {
            parts.push([]);
            work = 0;
        }
        parts[parts.length - 1].push(step);
        work += step.work;
    }
    return parts;
}

/**
 * @param {GPUComputePassEncoder} pass
 * @param {GpuPrograms} programs
 * @param {SlotSet} set
 * @param {Step[]} steps
 * @param {number} first number of the first step in the table of shapes
 */
function encodeSteps(pass, programs, set, steps, first) {
    const tables = /** @type {const} */ (["tasks", "pairs"]).map((name) => set.fit(name, 0));
    const shapes = set.fit("shapes", 0);
    steps.forEach((step, i) => {
        const buffers = [...step.buffers, ...tables].map((buffer, binding) => ({ binding, resource: { buffer } }));
        const shape = { binding: buffers.length, resource: { buffer: shapes, size: SHAPE_BYTES } };
        pass.setPipeline(programs.get(step.name));
        pass.setBindGroup(
            0,
            programs.device.createBindGroup({ layout: programs.layout, entries: [...buffers, shape] }),
            [(first + i) * SHAPE_STRIDE],
        );
        pass.dispatchWorkgroups(step.x, step.y);
    });
    pass.end();
}
