// Answers in f16 are rounded as Float16Array rounds them, row by row. Started by test_wire_parts.py.

import assert from "node:assert/strict";
import { test } from "node:test";
import { f16Reply, floatOfHalf } from "/static/kvasir/wire/half_floats.js";
import { mixed } from "./golden_frames.mjs";

const halvesOf = (floats) => new Uint16Array(Float16Array.from(floats).buffer);
const bitsOf = (floats) => new Uint32Array(floats.buffer.slice(0));

test("every finite half is the float that it says, and rounds to itself", () => {
    const halves = Uint16Array.from({ length: 65536 }, (_, i) => i).filter((half) => (half & 0x7c00) !== 0x7c00);
    const floats = Float32Array.from(new Float16Array(halves.slice().buffer));
    assert.deepEqual(f16Reply(floats, 1), halves);
    for (const [i, half] of halves.entries()) assert.equal(floatOfHalf(half), floats[i]);
});

test("every float between two halves goes to the nearer one, and to the even one in the middle", () => {
    const values = [];
    for (let half = 0; half < 0x7bff; half++) {
        const [low, high] = [floatOfHalf(half), floatOfHalf(half + 1)];
        const middle = (low + high) / 2;
        const step = 2 ** -20 * (high - low);
        values.push(middle, Math.fround(middle + step), Math.fround(middle - step), -middle);
    }
    const floats = Float32Array.from(values);
    assert.deepEqual(f16Reply(floats, floats.length), halvesOf(floats));
});

test("any float that fits is rounded as Float16Array rounds it", () => {
    const bits = Uint32Array.from({ length: 400_000 }, (_, i) => mixed(i + 1));
    const floats = new Float32Array(bits.buffer).filter((value) => Math.abs(value) < 65520);
    assert.ok(floats.length > 100_000);
    assert.deepEqual(f16Reply(floats, floats.length), halvesOf(floats));
});

test("a row that does not fit stays as it is, and its neighbours are rounded all the same", () => {
    const fits = [1 + 2 ** -12, -0, 3.0000001, 65519];
    for (const unfit of [65520, -65520, 1e30, Infinity, -Infinity, NaN]) {
        const outputs = Float32Array.from([...fits, 0.1, unfit, 0.1, 0.2, ...fits]);
        const reply = f16Reply(outputs, 4);
        assert.ok(reply instanceof Float32Array);
        const rounded = Float32Array.from(Float16Array.from(fits));
        const expected = Float32Array.from([...rounded, 0.1, unfit, 0.1, 0.2, ...rounded]);
        assert.deepEqual(bitsOf(reply), bitsOf(expected));
        assert.equal(outputs[0], Math.fround(fits[0]), "what was given has changed");
    }
});

test("a part of a larger result is rounded by itself", () => {
    const outputs = Float32Array.from([1e9, 1, 2, 3]).subarray(2);
    assert.deepEqual(f16Reply(outputs, 2), halvesOf([2, 3]));
});
