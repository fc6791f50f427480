/**
 * The dispatches of one stage of a chunk (gate and up together, or down): their programs, tasks and cuts. Only
 * `gpu/plan.js` calls it. Pure arithmetic; the layout of tasks and shapes is that of `wgsl/README.md`.
 */

import { BLOCK, QUANT_TYPES } from "../kx1_format.js";

/** @import { QuantType } from "../kernel_types.js" */
/** @import { Place } from "./arenas.js" */
/** @import { Group, PlanLimits } from "./plan.js" */

const TASK_WORDS = 8;
const TILE_PAIRS = 32;
const TILE_ROWS = 32;
const WORKGROUP = 64;

/** @typedef {"matvec_1" | "matvec_4" | "tiled"} MatrixProgram */
/** @typedef {"gateUp" | "down"} Stage */

/**
 * @typedef {object} Dispatch
 * @property {MatrixProgram} program
 * @property {QuantType} type
 * @property {Place["arena"]} arena
 * @property {number[]} shape 8 words
 * @property {number} x workgroups
 * @property {number} y workgroups
 * @property {number} work weights times pairs
 */

/**
 * A task of one matrix: `weights` bytes in the arena, `first` and `n` of the pair table.
 *
 * @typedef {{weights: number, exponent: number, first: number, n: number, column: number}} Task
 */

/** The tasks of a chunk, in the order in which dispatches read them. */
export class TaskTable {
    constructor() {
        /** @type {number[]} */
        this.numbers = [];
    }

    /** Add consecutive tasks. @param {Task[]} tasks @returns {number} the number of the first */
    add(tasks) {
        const first = this.numbers.length / TASK_WORDS;
        for (const { weights, exponent, first: pair, n, column } of tasks) {
            this.numbers.push(weights, exponent, pair, n, column, 0, 0, 0);
        }
        return first;
    }

    words() {
        return Uint32Array.from(this.numbers);
    }
}

/**
 * The tasks of one arena, type and program.
 *
 * @typedef {{arena: Place["arena"], type: QuantType, program: MatrixProgram, tasks: Task[]}} Batch
 * @typedef {{nIn: number, nOut: number, outStride: number}} StageShape
 */

/**
 * Return the dispatches of a stage: one for each arena, type and program, cut if it is long.
 *
 * @param {Group[]} groups of one width
 * @param {TaskTable} table receives their tasks
 * @param {Stage} stage
 * @param {PlanLimits} limits
 * @returns {Dispatch[]}
 */
export function planStage(groups, table, stage, limits) {
    const { dModel, dFf } = groups[0].expert;
    const shape =
        stage === "down"
            ? { nIn: dFf, nOut: dModel, outStride: dModel }
            : { nIn: dModel, nOut: dFf, outStride: 2 * dFf };
    return makeBatches(groups, stage, limits.tiledFrom).flatMap((batch) =>
        cutBatch(batch, table.add(batch.tasks), shape, limits),
    );
}

/**
 * @param {Group[]} groups
 * @param {Stage} stage
 * @param {number} tiledFrom
 * @returns {Batch[]}
 */
function makeBatches(groups, stage, tiledFrom) {
    /** @type {Batch[]} */
    const batches = [];
    const nPairs = groups.reduce((sum, group) => sum + group.pairs.length, 0);
    let slot = stage === "down" ? nPairs : 0;
    /** @type {("gate" | "up" | "down")[]} */
    const matrices = stage === "down" ? ["down"] : ["gate", "up"];
    for (const { expert, pairs } of groups) {
        for (const { program, start, n } of splitPairs(pairs.length, tiledFrom)) {
            for (const matrix of matrices) {
                batchOf(batches, expert.place.arena, expert.types[matrix], program).tasks.push({
                    weights: expert.offsets[matrix],
                    exponent: expert.exponents[matrix],
                    first: slot + start,
                    n,
                    column: matrix === "up" ? expert.dFf : 0,
                });
            }
        }
        slot += pairs.length;
    }
    return batches;
}

/**
 * @param {Batch[]} batches
 * @param {Place["arena"]} arena
 * @param {QuantType} type
 * @param {MatrixProgram} program
 */
function batchOf(batches, arena, type, program) {
    const same = batches.find((each) => each.arena === arena && each.type === type && each.program === program);
    if (same) return same;
    /** @type {Batch} */
    const batch = { arena, type, program, tasks: [] };
    batches.push(batch);
    return batch;
}

/**
 * Divide an expert's n pairs between the programs.
 *
 * @param {number} n
 * @param {number} tiledFrom
 * @returns {{program: MatrixProgram, start: number, n: number}[]}
 */
export function splitPairs(n, tiledFrom) {
    const isTiled = n >= tiledFrom;
    const most = isTiled ? TILE_PAIRS : 4;
    /** @type {{program: MatrixProgram, start: number, n: number}[]} */
    const parts = [];
    for (let start = 0; start < n; start += most) {
        const part = Math.min(most, n - start);
        const program = isTiled ? "tiled" : part === 1 ? "matvec_1" : "matvec_4";
        parts.push({ program, start, n: part });
    }
    return parts;
}

/**
 * Return dispatches of at most `maxWork` each: lists of tasks, or row ranges of a single one.
 *
 * @param {Batch} batch
 * @param {number} first the number of its first task
 * @param {StageShape} shape
 * @param {PlanLimits} limits
 * @returns {Dispatch[]}
 */
function cutBatch(batch, first, shape, limits) {
    const { tasks } = batch;
    const weights = shape.nIn * shape.nOut;
    /** @type {Dispatch[]} */
    const dispatches = [];
    for (let start = 0; start < tasks.length; ) {
        let stop = start;
        let nPairs = 0;
        while (stop < tasks.length && (stop === start || (nPairs + tasks[stop].n) * weights <= limits.maxWork)) {
            nPairs += tasks[stop].n;
            stop += 1;
        }
        const rowsAtOnce = Math.floor(limits.maxWork / (nPairs * shape.nIn) / TILE_ROWS) * TILE_ROWS || TILE_ROWS;
        for (let row = 0; row < shape.nOut; row += rowsAtOnce) {
            const nRows = Math.min(rowsAtOnce, shape.nOut - row);
            const cut = { firstTask: first + start, nTasks: stop - start, row, nRows, nPairs };
            dispatches.push(makeDispatch(batch, cut, shape, limits.lanes));
        }
        start = stop;
    }
    return dispatches;
}

/**
 * @param {Batch} batch
 * @param {{firstTask: number, nTasks: number, row: number, nRows: number, nPairs: number}} cut
 * @param {StageShape} shape
 * @param {number} lanes
 * @returns {Dispatch}
 */
function makeDispatch({ program, type, arena }, { firstTask, nTasks, row, nRows, nPairs }, shape, lanes) {
    const nBlocks = shape.nIn / BLOCK;
    const rowBytes = nBlocks * QUANT_TYPES[type].blockBytes;
    return {
        program,
        type,
        arena,
        shape: [nBlocks, shape.nOut, rowBytes, shape.outStride, firstTask, row, 0, 0],
        x: program === "tiled" ? Math.ceil(nRows / TILE_ROWS) : Math.ceil((nRows * lanes) / WORKGROUP),
        y: nTasks,
        work: nPairs * shape.nIn * nRows,
    };
}
