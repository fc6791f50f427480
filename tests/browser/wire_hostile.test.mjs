// What a hostile or mistaken sender may write: any bytes decode, or throw a WireError at once.
// Started by tests/contract/test_wire_javascript.py, which names a file of frames and of what Python makes of them.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { WireError } from "../../frontend/static/kvasir/errors.js";
import { MAX_FRAME_BYTES, recordHead, records } from "../../frontend/static/kvasir/relay/records.js";
import { decode, encode, join } from "../../frontend/static/kvasir/wire/codec.js";
import { clipped, goaway, hasControls } from "../../frontend/static/kvasir/wire/frames.js";
import { HEADER_BYTES } from "../../frontend/static/kvasir/wire/header.js";
import { ENTRIES, frameOf, mixed } from "./golden_frames.mjs";

const CASES = JSON.parse(readFileSync(process.env.KVASIR_TEST_CASES, "utf8"));
const bytes = (base64) => new Uint8Array(Buffer.from(base64, "base64"));

// What `read` gives, or null for a WireError; anything else that is thrown fails the test.
function unlessRefused(read) {
    try {
        return read();
    } catch (error) {
        assert.ok(error instanceof WireError, String(error?.stack));
        return null;
    }
}

test("JavaScript reads what Python reads, to the byte, and refuses what it refuses", () => {
    for (const [data, again] of CASES) {
        const frame = unlessRefused(() => decode(bytes(data)));
        const written = frame === null ? "" : Buffer.from(join(encode(frame))).toString("base64");
        assert.equal(written, again, Buffer.from(data, "base64").toString("hex"));
    }
});

test("every truncation is refused", () => {
    for (const entry of ENTRIES.filter(({ bytes: n }) => n < 2000)) {
        const data = join(encode(frameOf(entry)));
        for (let n = 0; n < data.length; n++)
            assert.equal(
                unlessRefused(() => decode(data.subarray(0, n))),
                null,
            );
    }
});

test("every flipped bit is found", () => {
    for (const entry of ENTRIES.filter(({ bytes: n }) => n < 700)) {
        const data = join(encode(frameOf(entry)));
        for (let bit = 0; bit < 8 * data.length; bit++) {
            data[bit >> 3] ^= 1 << (bit & 7);
            assert.equal(
                unlessRefused(() => decode(data)),
                null,
                `${entry.name}, bit ${bit}`,
            );
            data[bit >> 3] ^= 1 << (bit & 7);
        }
    }
});

test("noise is refused, as a frame and as records", () => {
    for (let n = 0; n < 3000; n++) {
        const data = Uint8Array.from({ length: n % 97 }, (_, i) => mixed(97 * n + i) >>> 24);
        const framed = join([Uint8Array.from([75, 86, 83, 82, 2]), data]);
        assert.equal(
            unlessRefused(() => decode(data)),
            null,
        );
        assert.equal(
            unlessRefused(() => decode(framed)),
            null,
        );
        const spans = unlessRefused(() => [...records(data)]);
        if (spans !== null)
            assert.equal(
                spans.reduce((sum, record) => sum + 8 + record.data.length, 0),
                data.length,
            );
    }
});

test("records come back in order; what is not whole records is refused", () => {
    const parts = [0, 1, 36, 300].flatMap((n, i) => [recordHead(i + 4294967290, n), new Uint8Array(n).fill(i)]);
    const message = join(parts);
    assert.deepEqual(
        [...records(message)].map(({ edge, data }) => [edge, data.length, data[0]]),
        [
            [4294967290, 0, undefined],
            [4294967291, 1, 1],
            [4294967292, 36, 2],
            [4294967293, 300, 3],
        ],
    );
    const cut = () => [...records(message.subarray(0, message.length - 1))];
    assert.throws(cut, /its record for edge 4294967293 at byte/);
    assert.throws(() => [...records(new Uint8Array(0))], /empty message/);
    assert.throws(() => [...records(new Uint8Array(7))], /within the head/);
    assert.throws(() => [...records(recordHead(1, MAX_FRAME_BYTES + 1))], /at most 8388644/);
});

test("any message can travel clipped", () => {
    const texts = [
        "",
        "a\nb\u0085c",
        "\ud800x\udfff",
        "é".repeat(600),
        "🜁".repeat(400),
        `${"x".repeat(1023)}é`,
        "\ufeffa",
    ];
    for (const text of texts) {
        const clean = clipped(text);
        assert.ok(!hasControls(clean));
        const data = join(encode(goaway(clean)));
        assert.equal(decode(data).reason, clean);
        assert.ok(data.length <= HEADER_BYTES + 2 + 1024);
    }
    assert.equal(clipped("🜁".repeat(400)), "🜁".repeat(256));
    assert.equal(clipped("\ufeffa\nb"), "\ufeffa b");
});
