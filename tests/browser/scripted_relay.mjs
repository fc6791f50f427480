// A relay that a test plays itself, over sockets and a clock in memory: for tests of the relay client.

import { RELAY_EDGE, recordHead, records } from "/static/kvasir/relay/records.js";
import { expertRange } from "/static/kvasir/slicing/expert_ranges.js";
import { decode, encode, join } from "/static/kvasir/wire/codec.js";
import { hello, Role, welcome } from "/static/kvasir/wire/frames.js";
import { makeLimits, WireType } from "/static/kvasir/wire/header.js";

export const MODEL = "ab".repeat(32);
export const KERNEL = "cd".repeat(32);
const PRINTS = { modelFingerprint: MODEL, kernelFingerprint: KERNEL, kernel: "kx1" };
export const CREDIT = 16 * 1024 * 1024;
const LIMITS = makeLimits({ maxInflightBytes: CREDIT });
const RELAY_WELCOME = welcome({ ...PRINTS, rowFormat: WireType.F32, dModel: 1, ranges: [], limits: LIMITS });

export const backboneHello = (changes = {}) => hello({ role: Role.BACKBONE, ...PRINTS, limits: LIMITS, ...changes });

// Lets everything that is due now happen.
export async function settle() {
    for (let i = 0; i < 4; i++) await new Promise((resolve) => setImmediate(resolve));
}

// One socket that was opened; the test is its other end.
export class ScriptedSocket {
    binaryType = "";
    bufferedAmount = 0;
    isClosed = false;
    closing = null;
    onopen = null;
    onmessage = null;
    onclose = null;
    messages = [];

    constructor(url) {
        this.url = url;
    }

    // What the client calls

    send(data) {
        this.messages.push(data);
    }

    close(code, reason) {
        if (this.isClosed) return;
        this.closing = { code, reason };
        queueMicrotask(() => this.hangUp(code ?? 1005, reason ?? ""));
    }

    // What the test calls

    hangUp(code = 1006, reason = "") {
        if (this.isClosed) return;
        this.isClosed = true;
        this.onclose?.({ code, reason });
    }

    sayBytes(data) {
        this.onmessage?.({ data: data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength) });
    }

    say(edge, ...frames) {
        const parts = frames.map((frame) => join(encode(frame)));
        this.sayBytes(join(parts.flatMap((data) => [recordHead(edge, data.length), data])));
    }

    greet() {
        this.onopen?.({});
        this.say(RELAY_EDGE, RELAY_WELCOME);
    }

    // The hello of the first message.
    get opening() {
        return { role: this.messages[0][0], hello: decode(this.messages[0].subarray(1)) };
    }

    // [edge, frame] of all that was said after the opening.
    get heard() {
        const spans = this.messages.slice(1).flatMap((message) => [...records(message)]);
        return spans.map(({ edge, data }) => [edge, decode(data)]);
    }

    on(edge) {
        return this.heard.filter(([number]) => number === edge).map(([, frame]) => frame);
    }
}

// A clock that stands still until `pass`, and all sockets that were opened.
export class ScriptedOutside {
    sockets = [];
    timers = [];
    now = 1000;

    nowS = () => this.now;

    after = (seconds, then) => {
        const timer = { atS: this.now + seconds, then };
        this.timers.push(timer);
        return { cancel: () => (this.timers = this.timers.filter((other) => other !== timer)) };
    };

    openSocket = (url) => {
        this.sockets.push(new ScriptedSocket(url));
        return this.sockets.at(-1);
    };

    get socket() {
        return this.sockets.at(-1);
    }

    // Let so many seconds pass, timer by timer.
    async pass(seconds) {
        const endS = this.now + seconds;
        await settle();
        for (;;) {
            const [next] = this.timers.filter(({ atS }) => atS <= endS).sort((a, b) => a.atS - b.atS);
            if (next === undefined) break;
            this.timers = this.timers.filter((timer) => timer !== next);
            this.now = Math.max(this.now, next.atS);
            next.then();
            await settle();
        }
        this.now = endS;
    }
}

// A kernel whose outputs say which row and which expert they are of: each code of the row, and 1000 times the expert.
// `held` collects calls that wait for `release`, while `isHolding`.
export class ScriptedKernel {
    name = "kx1";
    backend = "wasm";
    fingerprint = KERNEL;
    calls = [];
    isHolding = false;
    failure = null;
    held = [];

    async compute({ rows, nRows, dModel, pairRows, pairKeys }) {
        this.calls.push({ nRows, nPairs: pairKeys.length });
        if (this.isHolding) await new Promise((resolve) => this.held.push(resolve));
        if (this.failure !== null) {
            const error = this.failure(rows);
            if (error !== null) throw error;
        }
        return outputsOf({ rows, nRows, dModel, pairRows, experts: pairKeys.map((key) => Number(key.split("/")[1])) });
    }

    release() {
        for (const go of this.held.splice(0)) go();
    }
}

export function outputsOf({ rows, nRows, dModel, pairRows, experts }) {
    const width = rows.length / nRows;
    const outputs = new Float32Array(experts.length * dModel);
    experts.forEach((expert, pair) => {
        for (let i = 0; i < dModel; i++) {
            const at = Math.floor(i / 256) * 261 + (i % 256);
            outputs[pair * dModel + i] = rows[pairRows[pair] * width + at] + 1000 * expert;
        }
    });
    return outputs;
}

// Experts 4 to 7 and 12 to 15 of layer 2, and 0 and 1 of layer 5.
export function holdingsOf(kernel, dModel = 256) {
    const keys = (layer, ids) => ({ layer, keys: ids.map((id) => `${layer}/${id}`) });
    const ranges = [expertRange(2, 4, 8), expertRange(2, 12, 16), expertRange(5, 0, 2)];
    const layers = new Map([
        [2, keys(2, [4, 5, 6, 7, 12, 13, 14, 15])],
        [5, keys(5, [0, 1])],
    ]);
    return { modelFingerprint: MODEL, dModel, ranges, kernel, layers };
}

export function dispatch(request, { layer = 2, nRows = 1, pairIds = [0], dModel = 256, ...changes } = {}) {
    const rows = Uint8Array.from({ length: (nRows * dModel * 261) / 256 }, (_, i) => (i * 7 + request) % 120);
    const pairRows = Uint32Array.from(pairIds, (_, i) => i % nRows);
    const fields = { rowFormat: WireType.KX1, dModel, nRows, rows, pairRows, pairIds: Uint32Array.from(pairIds) };
    return { kind: 4, request, layer, ...fields, isReplyF16: false, hasMore: false, sums: null, ...changes };
}
