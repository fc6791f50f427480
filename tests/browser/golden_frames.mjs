// Golden frames of the wire for tests in JavaScript: the entries of tests/golden/wire and the frames that they describe,
// as tests/golden/wire/README.md says.

import { readFileSync } from "node:fs";
import { expertRange } from "../../frontend/static/kvasir/slicing/expert_ranges.js";
import * as frames from "../../frontend/static/kvasir/wire/frames.js";
import { encodedRowBytes, makeLimits, WireType } from "../../frontend/static/kvasir/wire/header.js";

export const ENTRIES = JSON.parse(readFileSync(new URL("../golden/wire/frames.json", import.meta.url), "utf8"));

export const mixed = (i) => Math.imul(i, 2654435761) >>> 0;

const limitsOf = ([maxPayloadBytes, maxRows, maxPairs, maxInflightBytes]) =>
    makeLimits({ maxPayloadBytes, maxRows, maxPairs, maxInflightBytes });

function dispatchOf({ request, layer, n_rows: nRows, n_pairs: nPairs, d_model: dModel, dtype, flags }) {
    const rows = Uint8Array.from({ length: nRows * encodedRowBytes(dtype, dModel) }, (_, i) => mixed(i) >>> 24);
    const pairRows = Uint32Array.from({ length: nPairs }, (_, i) => i % nRows);
    const pairIds = Uint32Array.from({ length: nPairs }, (_, i) => mixed(i) % 256);
    const sums =
        (flags & 4) === 0
            ? null
            : {
                  weights: Float32Array.from({ length: nPairs }, (_, i) => (mixed(i) >>> 8) / 2 ** 24),
                  exponents: Int32Array.from({ length: nRows }, (_, i) => (mixed(i) >>> 24) - 180),
              };
    const told = { isReplyF16: (flags & 1) !== 0, hasMore: (flags & 2) !== 0, sums };
    return { kind: 4, request, layer, rowFormat: dtype, dModel, nRows, rows, pairRows, pairIds, ...told };
}

// Values of the form k/8 from -64 to 64 have exact halves; their bits are made without the product's rounding.
function halfBits(value) {
    if (value === 0) return 0;
    const exponent = Math.floor(Math.log2(Math.abs(value)));
    const fraction = Math.abs(value) / 2 ** exponent - 1;
    return (value < 0 ? 0x8000 : 0) | ((exponent + 15) << 10) | (fraction * 1024);
}

function sumResultOf({ request, layer, n_rows: nRows, n_pairs: nPairs, d_model: dModel, widths }) {
    const sums = Int32Array.from({ length: nRows * dModel }, (_, i) => {
        const width = widths[Math.floor(i / 256) % widths.length];
        return width === 0 ? 0 : (mixed(i) >>> (32 - width)) - 2 ** (width - 1);
    });
    return frames.sumResult({ request, layer, nRows, pairIds: { length: nPairs }, dModel }, sums);
}

function resultOf({ request, layer, n_pairs: nPairs, d_model: dModel, dtype }) {
    const length = nPairs * dModel;
    const outputs =
        dtype === WireType.F16
            ? Uint16Array.from({ length }, (_, i) => halfBits((mixed(i) >>> 22) / 8 - 64))
            : Float32Array.from({ length }, (_, i) => (mixed(i) >>> 8) / 65536 - 128);
    return frames.result(request, layer, nPairs, dModel, outputs);
}

function handshakeOf(fields) {
    const { model_fingerprint: modelFingerprint, kernel_fingerprint: kernelFingerprint, kernel, name } = fields;
    return { modelFingerprint, kernelFingerprint, kernel, name, limits: limitsOf(fields.limits) };
}

const BUILDERS = {
    HELLO: (fields) => frames.hello({ ...handshakeOf(fields), role: fields.role, token: fields.token }),
    WELCOME: (fields) =>
        frames.welcome({
            ...handshakeOf(fields),
            rowFormat: fields.row_format,
            dModel: fields.d_model,
            ranges: fields.ranges.map((range) => expertRange(...range)),
        }),
    REFUSE: (fields) => frames.refuse(fields.code, fields.message),
    DISPATCH: dispatchOf,
    RESULT: (fields) => (fields.dtype === WireType.SUMS ? sumResultOf(fields) : resultOf(fields)),
    FAULT: (fields) => frames.fault(fields.request, fields.code, fields.message),
    PAUSE: (fields) => frames.pause(fields.milliseconds),
    GOAWAY: (fields) => frames.goaway(fields.reason),
    PING: (fields) => frames.ping(fields.number),
    PONG: (fields) => frames.pong(fields.number),
};

// The frame that an entry describes.
export const frameOf = (entry) => BUILDERS[entry.kind](entry.fields);
