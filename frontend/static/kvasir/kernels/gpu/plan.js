/**
 * What the GPU does for a call: which pairs go together, which program computes them, and the tables that say so.
 *
 * Called by `gpu/backend.js`; `gpu/encoder.js` carries it out. Pure arithmetic, no device: the layout is that of
 * `wgsl/README.md`, and the tests of it run without a GPU.
 */

import { BLOCK } from "../kx1_format.js";
import { planStage, TaskTable } from "./dispatches.js";

/** @import { QuantType } from "../kernel_types.js" */
/** @import { Place } from "./arenas.js" */
/** @import { Dispatch } from "./dispatches.js" */

const MAX_PAIRS = 4096; // of a chunk: no dimension of a dispatch passes 65,535
const ACTIVATION_WORDS = 76; // of a block

/**
 * One loaded expert. `offsets` are bytes in its arena, `exponents` step 2's `ew`, both of gate, up and down.
 *
 * @typedef {object} GpuExpert
 * @property {Place} place
 * @property {number} dModel
 * @property {number} dFf
 * @property {{gate: QuantType, up: QuantType, down: QuantType}} types
 * @property {{gate: number, up: number, down: number}} offsets
 * @property {{gate: number, up: number, down: number}} exponents
 */

/**
 * @typedef {object} PlanLimits
 * @property {number} lanes of `matvec`: 1, 2, 4, 8 or 16
 * @property {number} tiledFrom pairs of an expert from which `tiled` computes them
 * @property {number} maxWork weights times pairs of one submission, at most
 * @property {number} bufferBytes of one buffer, at most
 */

/**
 * A part of a call that is computed at once. `rows`: numbers of its rows in the call, in the order of its own;
 * `pairs`: numbers of its pairs in the call, ascending, so that its output row i is that of pair `pairs[i]`.
 *
 * @typedef {object} Chunk
 * @property {number} dModel
 * @property {number} dFf
 * @property {number[]} rows
 * @property {number[]} pairs
 * @property {Uint32Array<ArrayBuffer>} pairTable [2 * pairs, 2]
 * @property {Uint32Array<ArrayBuffer>} taskTable [nTasks, 8]
 * @property {Dispatch[]} gateUp
 * @property {Dispatch[]} down
 */

/**
 * Split a call into chunks. Every pair is in exactly one.
 *
 * @param {Uint32Array} pairRows [nPairs]
 * @param {GpuExpert[]} pairExperts [nPairs]
 * @param {PlanLimits} limits
 * @returns {Chunk[]}
 */
export function planCall(pairRows, pairExperts, limits) {
    /** @type {Chunk[]} */
    const chunks = [];
    for (const groups of splitGroups(groupByExpert(pairExperts), limits)) {
        chunks.push(planChunk(groups, pairRows, limits));
    }
    return chunks;
}

/** @typedef {{expert: GpuExpert, pairs: number[]}} Group the pairs of one expert */

/**
 * @param {GpuExpert[]} pairExperts
 * @returns {Group[]}
 */
function groupByExpert(pairExperts) {
    /** @type {Map<GpuExpert, number[]>} */
    const groups = new Map();
    pairExperts.forEach((expert, pair) => {
        const pairs = groups.get(expert);
        if (pairs) pairs.push(pair);
        else groups.set(expert, [pair]);
    });
    return [...groups].map(([expert, pairs]) => ({ expert, pairs }));
}

/**
 * Lists of groups of one width each, none with more pairs than the buffers take.
 *
 * @param {Group[]} groups
 * @param {PlanLimits} limits
 */
function splitGroups(groups, limits) {
    /** @type {Group[][]} */
    const lists = [];
    let room = 0;
    for (const { expert, pairs } of groups) {
        const most = pairsAtOnce(expert, limits.bufferBytes);
        for (let start = 0; start < pairs.length; ) {
            const list = lists.at(-1);
            if (!list || room === 0 || list[0].expert.dFf !== expert.dFf) {
                lists.push([]);
                room = most;
            }
            const part = pairs.slice(start, start + room);
            /** @type {Group[]} */ (lists.at(-1)).push({ expert, pairs: part });
            start += part.length;
            room -= part.length;
        }
    }
    return lists;
}

/**
 * @param {GpuExpert} expert
 * @param {number} bufferBytes
 */
function pairsAtOnce({ dModel, dFf }, bufferBytes) {
    const widest = Math.max(2 * dFf * 4, dModel * 4, (Math.max(dModel, dFf) / BLOCK) * ACTIVATION_WORDS * 4);
    return Math.max(1, Math.min(MAX_PAIRS, Math.floor(bufferBytes / widest)));
}

/**
 * @param {Group[]} groups of one width
 * @param {Uint32Array} pairRows
 * @param {PlanLimits} limits
 * @returns {Chunk}
 */
function planChunk(groups, pairRows, limits) {
    const { dModel, dFf } = groups[0].expert;
    const pairs = groups.flatMap((group) => group.pairs);
    const rows = [...new Set(pairs.map((pair) => pairRows[pair]))].sort((a, b) => a - b);
    const ascending = [...pairs].sort((a, b) => a - b);
    const tasks = new TaskTable();
    const gateUp = planStage(groups, tasks, "gateUp", limits);
    const down = planStage(groups, tasks, "down", limits);
    const pairTable = makePairTable(pairs, pairRows, rows, ascending);
    return { dModel, dFf, rows, pairs: ascending, pairTable, taskTable: tasks.words(), gateUp, down };
}

/**
 * @param {number[]} slots the pair of each slot
 * @param {Uint32Array} pairRows
 * @param {number[]} rows the call's number of each of the chunk's rows
 * @param {number[]} outputs the pair of each output row
 */
function makePairTable(slots, pairRows, rows, outputs) {
    const rowNumber = new Map(rows.map((row, number) => [row, number]));
    const outputNumber = new Map(outputs.map((pair, number) => [pair, number]));
    const table = new Uint32Array(4 * slots.length);
    slots.forEach((pair, slot) => {
        table.set([Number(rowNumber.get(pairRows[pair])), slot], 2 * slot);
        table.set([slot, Number(outputNumber.get(pair))], 2 * (slots.length + slot));
    });
    return table;
}
