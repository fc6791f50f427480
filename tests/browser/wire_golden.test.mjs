// The JavaScript codec on the golden frames that Python's is held to, and at every limit one unit to either side.
// Started by tests/contract/test_wire_javascript.py.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { crc32 as zlibCrc32 } from "node:zlib";
import { WireError, WireVersionError } from "../../frontend/static/kvasir/errors.js";
import { crc32 } from "../../frontend/static/kvasir/wire/checksum.js";
import { decode, encode, join } from "../../frontend/static/kvasir/wire/codec.js";
import { goaway, result, sumResult } from "../../frontend/static/kvasir/wire/frames.js";
import {
    encodedRowBytes,
    HEADER_BYTES,
    Kind,
    MAX_PAYLOAD_BYTES,
    MAX_ROWS,
    makeLimits,
    WireType,
} from "../../frontend/static/kvasir/wire/header.js";
import { ENTRIES, frameOf, mixed } from "./golden_frames.mjs";

const sha256 = (data) => createHash("sha256").update(data).digest("hex");
const hex = (data) => Buffer.from(data).toString("hex");
const kx1 = (nRows, nPairs, dModel = 1280) => ({
    kind: Kind.DISPATCH,
    request: 1,
    layer: 0,
    rowFormat: WireType.KX1,
    dModel,
    nRows,
    rows: Uint8Array.from({ length: nRows * encodedRowBytes(WireType.KX1, dModel) }, (_, i) => mixed(i) >>> 24),
    pairRows: new Uint32Array(nPairs),
    pairIds: new Uint32Array(nPairs),
    isReplyF16: false,
    hasMore: false,
    sums: null,
});

const kx1Sums = (nRows, nPairs, dModel = 256) => ({
    ...kx1(nRows, nPairs, dModel),
    sums: { weights: new Float32Array(nPairs), exponents: new Int32Array(nRows) },
});
const sumsOf = (nRows, nPairs, dModel = 256, length = nRows * dModel) =>
    sumResult(kx1(nRows, nPairs, dModel), new Int32Array(length));

// A dispatch with a payload of exactly that many bytes.
function dispatchOfPayload(nBytes, dModel = 1280) {
    const width = encodedRowBytes(WireType.KX1, dModel);
    let nRows = Math.floor((nBytes - 8) / width);
    while ((nBytes - nRows * width) % 8 !== 0) nRows -= 1;
    return kx1(nRows, (nBytes - nRows * width) / 8, dModel);
}

// The frame with the checksum that belongs to its bytes: what a hostile sender would write.
function withChecksum(data) {
    const sum = zlibCrc32(data.subarray(HEADER_BYTES), zlibCrc32(data.subarray(0, 32)));
    new DataView(data.buffer, data.byteOffset).setUint32(32, sum, true);
    return data;
}

for (const entry of ENTRIES) {
    test(`writes and reads ${entry.name}`, () => {
        const frame = frameOf(entry);
        const data = join(encode(frame));
        assert.equal(data.length, entry.bytes);
        if ("hex" in entry) assert.equal(hex(data), entry.hex);
        else assert.equal(hex(data.subarray(0, HEADER_BYTES)), entry.header_hex);
        assert.equal(sha256(data), entry.sha256);
        assert.deepEqual(decode(data), frame);
    });
}

test("a frame reads the same wherever it lies in a message", () => {
    for (const entry of ENTRIES.filter(({ bytes }) => bytes <= 70_000)) {
        const frame = frameOf(entry);
        const data = join(encode(frame));
        for (let offset = 1; offset < 5; offset++) {
            const message = new Uint8Array(offset + data.length);
            message.set(data, offset);
            assert.deepEqual(decode(message.subarray(offset)), frame, `${entry.name} at ${offset}`);
        }
    }
});

test("the checksum is zlib's at every length and start", () => {
    const data = Uint8Array.from({ length: 300 }, (_, i) => mixed(i) >>> 24);
    for (let start = 0; start < 9; start++) {
        for (let stop = start; stop < data.length; stop += 1 + (stop % 7)) {
            const part = data.subarray(start, stop);
            assert.equal(crc32(part), zlibCrc32(part));
            assert.equal(crc32(part, 0x8000_0001), zlibCrc32(part, 0x8000_0001));
        }
    }
});

const MIB = 1024 * 1024;
for (const length of [65_535, 65_536, 65_537, MIB - 1, MIB, MIB + 1, 8 * MIB - 1, 8 * MIB]) {
    for (const whole of [false, true]) {
        test(`a ${whole ? "frame" : "payload"} of ${length} bytes comes back`, () => {
            const frame = dispatchOfPayload(whole ? length - HEADER_BYTES : length);
            const data = join(encode(frame));
            assert.equal(data.length, whole ? length : length + HEADER_BYTES);
            assert.equal(new DataView(data.buffer).getUint32(28, true), data.length - HEADER_BYTES);
            const again = decode(data);
            assert.equal(Buffer.compare(again.rows, frame.rows), 0);
            assert.equal(Buffer.compare(join(encode(again)), data), 0);
        });
    }
}

test("a payload over 8 MiB is neither sent nor read, and costs no memory", () => {
    assert.throws(() => encode(dispatchOfPayload(MAX_PAYLOAD_BYTES + 1)), WireError);
    const last = encode(result(1, 0, 2048, 1024, new Float32Array(2048 * 1024)));
    assert.equal(last[1].length, MAX_PAYLOAD_BYTES);
    const header = last[0].slice();
    const view = new DataView(header.buffer);
    view.setUint32(28, MAX_PAYLOAD_BYTES + 1, true);
    assert.throws(() => decode(header), /payload of 8388609 bytes is over the limit of 8388608/);
    view.setUint32(28, 2 ** 32 - 1, true);
    assert.throws(() => decode(header), /4294967295/);
});

test("a control payload over 1 MiB is refused", () => {
    const header = encode(goaway("x"))[0].slice();
    new DataView(header.buffer).setUint32(28, MIB, true);
    assert.throws(() => decode(header), /its header says 1048612/);
    new DataView(header.buffer).setUint32(28, MIB + 1, true);
    assert.throws(() => decode(header), /1048577 bytes is over the limit of 1048576/);
});

test("stated limits hold to the unit at both ends", () => {
    const frames = [
        [kx1(3, 1, 256), "maxRows", 3],
        [kx1(1, 3, 256), "maxPairs", 3],
        [kx1(1, 1, 256), "maxPayloadBytes", 269],
        [result(1, 0, 3, 2, new Float32Array(6)), "maxPairs", 3],
        [result(1, 0, 3, 2, new Uint16Array(6)), "maxPayloadBytes", 12],
        [kx1Sums(1, 1), "maxPayloadBytes", 277],
        [sumsOf(3, 1), "maxRows", 3],
        [sumsOf(1, 3), "maxPairs", 3],
        [sumsOf(3, 1), "maxPayloadBytes", 3 * 1025], // whatever it has: three bytes
    ];
    for (const [frame, name, most] of frames) {
        const [enough, less] = [makeLimits({ [name]: most }), makeLimits({ [name]: most - 1 })];
        const data = join(encode(frame, enough));
        assert.equal(decode(data, enough).kind, frame.kind);
        assert.throws(() => encode(frame, less), WireError);
        assert.throws(() => decode(data, less), WireError);
    }
});

test("the protocol's limits hold to the unit", () => {
    for (const frame of [kx1(MAX_ROWS, 1, 256), kx1(1, 65_536, 256), kx1(1, 1, 65_536), goaway("x".repeat(1024))]) {
        encode(frame);
    }
    for (const frame of [
        kx1(MAX_ROWS + 1, 1, 256),
        kx1(1, 65_537, 256),
        kx1(1, 1, 65_792),
        goaway("x".repeat(1025)),
        goaway("é".repeat(513)),
        result(1, 0, 2049, 1024, new Float32Array(2049 * 1024)),
    ]) {
        assert.throws(() => encode(frame), WireError);
    }
    for (const limits of [{ maxRows: 0 }, { maxPairs: 65_537 }, { maxInflightBytes: 2 ** 32 }, { maxRows: 1.5 }]) {
        assert.throws(() => makeLimits(limits), WireError);
    }
});

test("frames that cannot travel are not sent", () => {
    const hello = frameOf(ENTRIES[0]);
    const welcome = frameOf(ENTRIES.find(({ kind }) => kind === "WELCOME"));
    for (const frame of [
        { ...hello, modelFingerprint: "0f".repeat(31) },
        { ...hello, modelFingerprint: "0F".repeat(32) },
        { ...hello, kernel: "kx\n1" },
        { ...hello, kernel: "\ud800" },
        { ...welcome, ranges: [...welcome.ranges].reverse() },
        { ...welcome, dModel: 2 ** 32 },
        { kind: Kind.PAUSE, milliseconds: -1 },
        { kind: Kind.PAUSE, milliseconds: 2 ** 32 },
        { kind: Kind.PING, number: 2 ** 32 },
        { kind: Kind.FAULT, request: -1, code: 3, message: "" },
        result(0, 0, 1, 1, new Float32Array(1)),
        result(1, 2 ** 32, 1, 1, new Float32Array(1)),
        result(1, 0, 1, 2, new Float32Array(1)),
        result(1, 0, 0, 3, new Float32Array(0)),
        { ...kx1(1, 1, 256), rows: new Uint8Array(260) },
        { ...kx1(1, 1, 256), pairRows: new Uint32Array(2) },
        { ...kx1Sums(1, 1), isReplyF16: true },
        { ...kx1Sums(2, 1), sums: { weights: new Float32Array(2), exponents: new Int32Array(2) } },
        { ...kx1Sums(2, 1), sums: { weights: new Float32Array(1), exponents: new Int32Array(1) } },
        { ...kx1Sums(1, 1), rowFormat: WireType.F32, dModel: 64, rows: new Uint8Array(256) },
        sumsOf(1, 1, 256, 255),
        { ...sumsOf(1, 1), dModel: 128, sums: new Int32Array(128) },
        sumsOf(0, 1),
        sumsOf(1, 0),
    ]) {
        assert.throws(() => encode(frame), WireError, JSON.stringify(frame).slice(0, 200));
    }
});

test("another version is told apart, and its refusal is read", () => {
    const refusal = join(encode(frameOf(ENTRIES.find(({ kind }) => kind === "REFUSE"))));
    refusal[4] = 1;
    assert.equal(decode(withChecksum(refusal)).kind, Kind.REFUSE);
    const hello = join(encode(frameOf(ENTRIES[0])));
    hello[4] = 1;
    assert.throws(
        () => decode(withChecksum(hello)),
        (error) => {
            assert.ok(error instanceof WireVersionError);
            assert.match(error.message, /version 1 .* speaks 2/);
            return true;
        },
    );
});
