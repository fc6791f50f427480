// Arenas of weights on a device that is made up: places, gaps, a full budget, and a device without memory.

import assert from "node:assert/strict";
import test from "node:test";

import { KernelError, KernelMemoryError } from "/static/kvasir/errors.js";
import { GpuArenas } from "/static/kvasir/kernels/gpu/arenas.js";

/** A device that has `memory` bytes, and keeps what is written. */
class MadeUpDevice {
    constructor(memory = Infinity) {
        this.memory = memory;
        this.used = 0;
        this.scopes = [];
        this.queue = {
            writeBuffer: (buffer, offset, data, start = 0, n = data.length) =>
                this.write(buffer, offset, data.subarray(start, start + n)),
        };
    }

    createBuffer({ size }) {
        const fits = this.used + size <= this.memory;
        if (fits) this.used += size;
        else this.scopes[this.scopes.length - 1] ??= { message: "out of memory" };
        return {
            size,
            bytes: new Uint8Array(fits && size < 2 ** 20 ? size : 0),
            destroy: () => {
                if (fits) this.used -= size;
            },
        };
    }

    write(buffer, offset, data) {
        assert.ok(offset % 4 === 0 && data.length % 4 === 0 && offset + data.length <= buffer.size);
        buffer.bytes.set(data, offset);
    }

    pushErrorScope(filter) {
        assert.equal(filter, "out-of-memory");
        this.scopes.push(null);
    }

    async popErrorScope() {
        return this.scopes.pop();
    }
}

const MIB = 2 ** 20;

test("places lie side by side in arenas of whole experts, and never overlap", async () => {
    const device = new MadeUpDevice();
    const arenas = new GpuArenas(device, 10 * 768, 100 * 768);
    const places = await Promise.all(Array.from({ length: 25 }, () => arenas.reserve(700)));
    assert.equal(arenas.arenas.length, 3);
    for (const arena of arenas.arenas) {
        const starts = places
            .filter((place) => place.arena === arena)
            .map((place) => place.start)
            .sort((a, b) => a - b);
        for (const [i, start] of starts.entries()) assert.equal(start, 768 * i);
    }
    assert.ok(places.every((place) => place.size === 768 && place.start + place.size <= place.arena.size));
});

test("what is given back is used again, in any order, and an empty arena is freed", async () => {
    const device = new MadeUpDevice();
    const arenas = new GpuArenas(device, 4096, 4096);
    const places = [];
    for (let i = 0; i < 4; i++) places.push(await arenas.reserve(1024));
    await assert.rejects(arenas.reserve(1024), KernelMemoryError);
    arenas.release(places[2]);
    arenas.release(places[0]);
    arenas.release(places[1]);
    assert.deepEqual(arenas.arenas[0].gaps, [{ start: 0, size: 3072 }]);
    const large = await arenas.reserve(3000);
    assert.equal(large.start, 0);
    arenas.release(large);
    arenas.release(places[3]);
    assert.deepEqual([arenas.reservedBytes, device.used], [0, 0]);
});

test("a full budget says what was asked and what is left", async () => {
    const arenas = new GpuArenas(new MadeUpDevice(), MIB, 2000);
    await arenas.reserve(1024);
    await assert.rejects(arenas.reserve(1024), { name: "KernelMemoryError", needed: 1024, available: 976 });
    await arenas.reserve(700);
    await assert.rejects(
        arenas.reserve(2 * MIB),
        (error) => error instanceof KernelError && !(error instanceof KernelMemoryError),
    );
});

test("a device with less memory than the budget is used as far as it goes", async () => {
    const device = new MadeUpDevice(10 * 1024);
    const arenas = new GpuArenas(device, MIB, 8 * MIB);
    let n = 0;
    const fill = async () => {
        for (;;) {
            await arenas.reserve(1024);
            n += 1;
        }
    };
    await assert.rejects(fill(), { name: "KernelMemoryError", available: 0 });
    assert.deepEqual([n, device.used], [10, 10 * 1024]);
});

test("bytes of any number arrive, filled up with zeros", async () => {
    const arenas = new GpuArenas(new MadeUpDevice(), 4096, 4096);
    const place = await arenas.reserve(64);
    place.arena.buffer.bytes.fill(9);
    await arenas.write(place, [
        { offset: 0, bytes: Uint8Array.of(1, 2, 3, 4, 5) },
        { offset: 16, bytes: Uint8Array.of(6) },
        { offset: 32, bytes: Uint8Array.of(7, 7, 7, 7) },
    ]);
    assert.deepEqual([...place.arena.buffer.bytes.subarray(0, 9)], [1, 2, 3, 4, 5, 0, 0, 0, 9]);
    assert.deepEqual([...place.arena.buffer.bytes.subarray(16, 21)], [6, 0, 0, 0, 9]);
    assert.deepEqual([...place.arena.buffer.bytes.subarray(32, 37)], [7, 7, 7, 7, 9]);
    arenas.close();
    assert.equal(arenas.reservedBytes, 0);
});
