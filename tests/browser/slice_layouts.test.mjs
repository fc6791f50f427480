// Where a slice's experts lie, in every layout that models have: the bytes that Python takes, matrix by matrix.
// LAYOUTS is a folder of slices with what Python read from each: NAME.gguf and NAME.json.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import test from "node:test";

import { readSlice } from "/static/kvasir/slicing/slice_file.js";

for (const name of ["plain", "fused", "biased", "fused_biased"]) {
    test(`experts of a ${name} layout`, () => {
        const bytes = readFileSync(`${process.env.LAYOUTS}/${name}.gguf`);
        const wanted = JSON.parse(readFileSync(`${process.env.LAYOUTS}/${name}.json`, "utf8"));
        const hash = (places) => {
            const digest = createHash("sha256");
            for (const { offset, nBytes } of places) digest.update(bytes.subarray(offset, offset + nBytes));
            return digest.digest("hex");
        };
        const { experts, modelFingerprint } = readSlice(new Uint8Array(bytes), bytes.length);
        const found = experts.map(({ layer, expert, gate, up, down, digested, hasBias, types }) => ({
            key: `${layer}/${expert}`,
            gate: hash([gate]),
            up: hash([up]),
            down: hash([down]),
            all: hash(digested),
            has_bias: hasBias,
            types: [types.gate, types.up, types.down],
        }));
        assert.deepEqual([modelFingerprint, found], [wanted.fingerprint, wanted.experts]);
    });
}
