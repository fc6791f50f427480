/**
 * The queue between connections and the kernel. Backbones take turns. Waiting jobs of the same layer are computed
 * together: it is cheaper to read an expert's weights once for many rows, and a kernel's result for a pair does not
 * depend on other pairs. Two batches are in flight, so that a GPU never waits for this thread. join.js makes one for
 * its holdings.
 */

import { KernelError, KernelLostError, KernelMemoryError, messageOf } from "../../errors.js";
import { sumOutputs } from "../../kernels/sums.js";
import { join } from "../../wire/codec.js";
import { clipped, FaultCode, fault, result, sumResult } from "../../wire/frames.js";
import { f16Reply } from "../../wire/half_floats.js";
import { Kind } from "../../wire/header.js";
import { resultBytes } from "../../wire/split.js";

/** @typedef {import("../../wire/frames.js").Dispatch} Dispatch */
/** @typedef {import("../../wire/frames.js").Result} Result */
/** @typedef {import("../../wire/frames.js").SumResult} SumResult */
/** @typedef {import("../../wire/frames.js").Fault} Fault */
/** @typedef {import("../../slicing/expert_ranges.js").ExpertRange} ExpertRange */

/**
 * The experts of one layer: the kernel's key of each, by local id.
 * @typedef {{readonly layer: number, readonly keys: readonly string[]}} LoadedLayer
 */

/**
 * What this worker can compute: the part of `Holdings` that is used here. Immutable.
 * @typedef {object} Holdings
 * @property {string} modelFingerprint 64 hex digits
 * @property {number} dModel
 * @property {readonly ExpertRange[]} ranges merged and ascending; local ids of a layer count through them
 * @property {import("../../kernels/kernel_types.js").ExpertKernel} kernel
 * @property {ReadonlyMap<number, LoadedLayer>} layers by layer number
 */

/**
 * A checked dispatch, its client, and the function that takes its answer.
 * @typedef {object} Job
 * @property {object} client
 * @property {Dispatch} dispatch
 * @property {(frame: Result | SumResult | Fault) => void} answer
 */

/**
 * What was computed, faults apart: `nPairs` row-experts of `nJobs` dispatches, in `seconds` from their turn to their
 * outputs.
 * @typedef {{layer: number, nJobs: number, nPairs: number, seconds: number}} Computed
 */

/** Of outputs computed together, unless a single job has more. */
const MAX_BATCH_BYTES = 44 * 1024 * 1024;
const BATCHES_IN_FLIGHT = 2;

/** Jobs in, answers out. */
export class ComputeQueue {
    #holdings;
    #maxBatchBytes;
    #onComputed;
    /** @type {Map<object, Job[]>} the next client to serve comes first */
    #waiting = new Map();
    #nInFlight = 0;
    #isStopped = false;

    /**
     * @param {Holdings} holdings
     * @param {{maxBatchBytes?: number, onComputed?: (computed: Computed) => void}} [options]
     */
    constructor(holdings, { maxBatchBytes = MAX_BATCH_BYTES, onComputed = () => {} } = {}) {
        this.#holdings = holdings;
        this.#maxBatchBytes = maxBatchBytes;
        this.#onComputed = onComputed;
    }

    /** Compute nothing more; batches in flight are not answered. */
    stop() {
        this.#isStopped = true;
        this.#waiting.clear();
    }

    /** @param {Job} job its connection bounds the number that may wait */
    submit(job) {
        const jobs = this.#waiting.get(job.client);
        if (jobs === undefined) this.#waiting.set(job.client, [job]);
        else jobs.push(job);
        queueMicrotask(() => this.#next()); // after everything that arrived with it
    }

    /** @param {object} client its waiting jobs are dropped */
    forget(client) {
        this.#waiting.delete(client);
    }

    #next() {
        while (!this.#isStopped && this.#nInFlight < BATCHES_IN_FLIGHT && this.#waiting.size > 0) {
            this.#nInFlight += 1;
            void this.#compute(this.#nextBatch());
        }
    }

    /** @param {readonly Job[]} batch */
    async #compute(batch) {
        const began = performance.now();
        const answers = await computeBatch(this.#holdings, batch, this.#maxBatchBytes);
        this.#nInFlight -= 1;
        if (this.#isStopped) return;
        this.#next(); // first: the kernel computes on while the answers are encoded and sent
        this.#tell(answers, (performance.now() - began) / 1000);
        for (const [i, job] of batch.entries()) job.answer(answers[i]);
    }

    /** @param {readonly (Result | SumResult | Fault)[]} answers of one layer @param {number} seconds */
    #tell(answers, seconds) {
        const results = answers.filter((answer) => answer.kind === Kind.RESULT);
        if (results.length === 0) return;
        const nPairs = results.reduce((sum, answer) => sum + answer.nPairs, 0);
        this.#onComputed({ layer: results[0].layer, nJobs: results.length, nPairs, seconds });
    }

    /** @returns {Job[]} the oldest job of the next client, and the jobs of the same layer that fit beside it */
    #nextBatch() {
        const [client, jobs] = /** @type {[object, Job[]]} */ (this.#waiting.entries().next().value);
        const [first, ...rest] = jobs;
        this.#waiting.delete(client);
        if (rest.length > 0) this.#waiting.set(client, rest); // to the end of the line
        const batch = [first];
        let room = this.#maxBatchBytes - outputBytes(first);
        for (const [other, others] of [...this.#waiting]) {
            const kept = others.filter((job) => {
                const isTaken = job.dispatch.layer === first.dispatch.layer && outputBytes(job) <= room;
                if (isTaken) {
                    batch.push(job);
                    room -= outputBytes(job);
                }
                return !isTaken;
            });
            if (kept.length > 0) this.#waiting.set(other, kept);
            else this.#waiting.delete(other);
        }
        return batch;
    }
}

/** @param {Job} job @returns {number} */
function outputBytes({ dispatch }) {
    return resultBytes(dispatch.pairIds.length, dispatch.dModel);
}

/**
 * Compute the answers to jobs of one layer, in their order. Never rejects.
 * @param {Holdings} holdings
 * @param {readonly Job[]} batch
 * @param {number} maxBytes of outputs at once, for a single job that asks for sums
 * @returns {Promise<(Result | SumResult | Fault)[]>}
 */
async function computeBatch(holdings, batch, maxBytes) {
    const dispatches = batch.map((job) => job.dispatch);
    if (dispatches.length > 1) {
        try {
            return await answersTogether(holdings, dispatches);
        } catch {
            // one of them is invalid: compute each alone, so that only that one fails
        }
    }
    const answers = [];
    for (const dispatch of dispatches) answers.push(await answerAlone(holdings, dispatch, maxBytes));
    return answers;
}

/** @param {Holdings} holdings @param {readonly Dispatch[]} dispatches @returns {Promise<(Result | SumResult)[]>} */
async function answersTogether(holdings, dispatches) {
    const nPairs = dispatches.reduce((sum, { pairIds }) => sum + pairIds.length, 0);
    const [pairRows, pairIds] = [new Uint32Array(nPairs), new Uint32Array(nPairs)];
    let [firstRow, firstPair] = [0, 0];
    for (const dispatch of dispatches) {
        for (let i = 0; i < dispatch.pairIds.length; i++) pairRows[firstPair + i] = dispatch.pairRows[i] + firstRow;
        pairIds.set(dispatch.pairIds, firstPair);
        firstRow += dispatch.nRows;
        firstPair += dispatch.pairIds.length;
    }
    const rows = join(dispatches.map((dispatch) => dispatch.rows));
    const outputs = await compute(holdings, { ...dispatches[0], nRows: firstRow, rows, pairRows, pairIds });
    let at = 0;
    return dispatches.map((dispatch) => {
        const start = at;
        at += dispatch.pairIds.length * dispatch.dModel;
        return answerOf(dispatch, outputs.subarray(start, at));
    });
}

/**
 * @param {Holdings} holdings
 * @param {Dispatch} dispatch
 * @param {number} maxBytes
 * @returns {Promise<Result | SumResult | Fault>}
 */
async function answerAlone(holdings, dispatch, maxBytes) {
    try {
        // copied rows: sending a view to a thread would send the whole message around it
        const asked = { ...dispatch, rows: dispatch.rows.slice() };
        if (dispatch.sums !== null) return sumResult(dispatch, await summed(holdings, asked, dispatch.sums, maxBytes));
        return answerOf(dispatch, await compute(holdings, asked));
    } catch (error) {
        const isRefused =
            error instanceof KernelError && !(error instanceof KernelLostError || error instanceof KernelMemoryError);
        if (isRefused) return fault(dispatch.request, FaultCode.BAD_ROWS, clipped(error.message));
        const name = error instanceof Error ? error.name : "Error";
        return fault(dispatch.request, FaultCode.INTERNAL, clipped(`${name}: ${messageOf(error)}`));
    }
}

/**
 * Compute the sums of a dispatch in parts of at most `maxBytes` of outputs: a few rows with many pairs would need far
 * more memory than their answer. Integer sums associate, so the bits are the same.
 * @param {Holdings} holdings
 * @param {Dispatch} dispatch
 * @param {import("../../wire/frames.js").SumOrder} order
 * @param {number} maxBytes
 * @returns {Promise<Int32Array>} [nRows * dModel]
 */
async function summed(holdings, dispatch, { weights, exponents }, maxBytes) {
    const step = Math.max(Math.floor(maxBytes / resultBytes(1, dispatch.dModel)), 1);
    const sums = new Int32Array(dispatch.nRows * dispatch.dModel);
    for (let start = 0; start < weights.length; start += step) {
        const pairRows = dispatch.pairRows.subarray(start, start + step);
        const pairIds = dispatch.pairIds.subarray(start, start + step);
        const outputs = await compute(holdings, { ...dispatch, pairRows, pairIds });
        const part = sumOutputs(outputs, weights.subarray(start, start + step), pairRows, exponents);
        for (let i = 0; i < sums.length; i++) sums[i] += part[i];
    }
    return sums;
}

/** @param {Holdings} holdings @param {Dispatch} dispatch @returns {Promise<Float32Array>} [nPairs * dModel] */
async function compute({ kernel, layers }, { layer, rows, nRows, dModel, pairRows, pairIds }) {
    const keys = layers.get(layer)?.keys ?? [];
    const pairKeys = Array.from(pairIds, (id) => keys[id]);
    const outputs = await kernel.compute({ rows, nRows, dModel, pairRows, pairKeys });
    if (outputs.length !== pairIds.length * dModel) {
        throw new Error(`the kernel returned ${outputs.length} values, ${pairIds.length * dModel} are needed`);
    }
    return outputs;
}

/** @param {Dispatch} dispatch @param {Float32Array} outputs of its pairs @returns {Result | SumResult} */
function answerOf(dispatch, outputs) {
    const { request, layer, dModel, pairRows, pairIds, isReplyF16, sums } = dispatch;
    if (sums !== null) return sumResult(dispatch, sumOutputs(outputs, sums.weights, pairRows, sums.exponents));
    return result(request, layer, pairIds.length, dModel, isReplyF16 ? f16Reply(outputs, dModel) : outputs);
}
