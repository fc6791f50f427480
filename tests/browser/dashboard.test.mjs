// The dashboard's parts that draw nothing: colours, words, keys, and the line to /live with sockets that the test holds.

import assert from "node:assert/strict";
import test, { mock } from "node:test";

globalThis.gettext = (text) => text;
globalThis.ngettext = (one, many, n) => (n === 1 ? one : many);
globalThis.interpolate = (format, values, named) =>
    named ? format.replace(/%\((\w+)\)s/g, (_, name) => values[name]) : format.replace(/%s/g, () => values.shift());
const listeners = new Map();
globalThis.document = {
    documentElement: { lang: "en" },
    visibilityState: "visible",
    addEventListener: (name, listener) => listeners.set(name, listener),
    removeEventListener: (name) => listeners.delete(name),
};
globalThis.window = globalThis;

const { cellAfter, cellWords, layerFacts, runsOf } = await import("/static/kvasir/pages/dashboard/cells.js");
const { formatBytes, formatDuration, formatRate, formatSeconds, formatShare } = await import(
    "/static/kvasir/pages/dashboard/format.js"
);
const { LiveLink, OLD_S, liveUrl, reconnectMs, unpack } = await import("/static/kvasir/pages/dashboard/link.js");
const { hexColour, pixel, replicaPixels, stepOf, trafficColour, trafficLevel, trafficPixels, trafficTop } =
    await import("/static/kvasir/pages/dashboard/scale.js");

const PALETTE = {
    steps: [
        [1, 2, 3],
        [10, 20, 30],
        [40, 50, 60],
        [70, 80, 90],
        [100, 110, 120],
    ],
    absent: [200, 201, 202],
};
const SNAPSHOT = {
    model: { n_layer: 3, n_expert: 4, expert_bytes: [0, 2048, 2048], moe_layers: [1, 2] },
    coverage: {
        replicas: [0, 0, 0, 0, 0, 1, 2, 5, 0, 0, 1, 0],
        pending: [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
        targets: [0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 1, 2],
    },
    traffic: [0, 0, 0, 0, 1.5, 0, 0, 150, 0, 0, 0, 0],
};

test("steps go by replicas against the target", () => {
    assert.deepEqual(
        [
            [0, 2],
            [1, 2],
            [2, 2],
            [3, 2],
            [4, 2],
            [9, 2],
            [0, 0],
        ].map(([r, t]) => stepOf(r, t)),
        [0, 1, 2, 3, 4, 4, null],
    );
    const pixels = replicaPixels(SNAPSHOT.coverage.replicas, SNAPSHOT.coverage.targets, PALETTE);
    const step = (i) => pixel(PALETTE.steps[i]);
    const absent = pixel(PALETTE.absent);
    assert.deepEqual([...pixels], [absent, absent, absent, absent, ...[0, 1, 2, 4, 0, 0, 2, 0].map(step)]);
});

test("a pixel is red, green, blue, opaque in memory", () => {
    assert.deepEqual([...new Uint8Array(new Uint32Array([pixel([1, 2, 254])]).buffer)], [1, 2, 254, 255]);
    assert.deepEqual(hexColour(" #0fA0ff "), [15, 160, 255]);
    assert.throws(() => hexColour("red"), /"red" is not of the form #rrggbb/);
});

test("traffic is told apart over two orders of magnitude, and idle experts look idle", () => {
    assert.equal(trafficLevel(0, 100), 0);
    assert.equal(trafficLevel(100, 100), 1);
    assert.equal(trafficLevel(10, 100), 0.5);
    assert.ok(trafficLevel(0.001, 100) > 0);
    assert.equal(trafficTop([0.01, 0.02]), 1);
    assert.equal(trafficTop([3, 40]), 40);
    assert.equal(trafficTop([...Array(99).fill(3), 40]), 3); // one outlier does not make the rest look idle
    assert.deepEqual(trafficColour(PALETTE, 0), PALETTE.steps[0]);
    assert.deepEqual(trafficColour(PALETTE, 1), PALETTE.steps[4]);
    const pixels = trafficPixels(SNAPSHOT.traffic, SNAPSHOT.coverage.targets, PALETTE);
    assert.deepEqual(
        [pixels[0], pixels[5], pixels[7]],
        [pixel(PALETTE.absent), pixel(PALETTE.steps[0]), pixel(PALETTE.steps[4])],
    );
});

test("keys move within the map", () => {
    const at = (layer, expert) => ({ layer, expert });
    const after = (key, cell) => cellAfter(key, cell, 3, 4);
    assert.deepEqual(after("ArrowRight", null), at(0, 0));
    assert.deepEqual(after("ArrowRight", at(0, 0)), at(0, 1));
    assert.deepEqual(after("ArrowRight", at(0, 3)), at(0, 3));
    assert.deepEqual(after("ArrowLeft", at(1, 0)), at(1, 0));
    assert.deepEqual(after("ArrowUp", at(0, 1)), at(0, 1));
    assert.deepEqual(after("ArrowDown", at(1, 1)), at(2, 1));
    assert.deepEqual([after("Home", at(1, 2)), after("End", at(1, 2))], [at(1, 0), at(1, 3)]);
    assert.deepEqual([after("PageUp", at(1, 2)), after("PageDown", at(1, 2))], [at(0, 2), at(2, 2)]);
    assert.equal(after("Escape", at(1, 2)), null);
    assert.equal(after("Tab", at(1, 2)), undefined);
});

test("cells and layers in words", () => {
    assert.equal(
        cellWords(SNAPSHOT, { layer: 1, expert: 0 }),
        "Layer 1, expert 0 · 0 of 2 replicas · 1 on the way · 1.5 rows/s · 2 KiB",
    );
    assert.equal(cellWords(SNAPSHOT, { layer: 2, expert: 2 }), "Layer 2, expert 2 · 1 of 1 replica · 0 rows/s · 2 KiB");
    assert.equal(cellWords(SNAPSHOT, { layer: 0, expert: 0 }), "Layer 0 has no experts");
    assert.deepEqual(layerFacts(SNAPSHOT, 2), {
        layer: 2,
        nCovered: 1,
        fewest: 0,
        most: 1,
        nLacking: 6,
        rowsPerS: 0,
        uncovered: "0–1, 3",
    });
    assert.equal(layerFacts(SNAPSHOT, 1).nLacking, 3);
    assert.equal(runsOf([false, false]), "");
    assert.equal(runsOf(Array.from({ length: 20 }, (_, i) => i % 2 === 0)), "0, 2, 4, 6, 8, 10 …");
});

test("numbers for people", () => {
    assert.deepEqual([0, 0.0004, 0.5, 12.345, 999, 12_345].map(formatRate), ["0", "0", "0.5", "12.3", "999", "12.3K"]);
    assert.deepEqual([null, 0.0123, 1.5].map(formatSeconds), ["–", "12.3 ms", "1.5 s"]);
    assert.deepEqual([10, 2048, 5.5 * 2 ** 30].map(formatBytes), ["10 B", "2 KiB", "5.5 GiB"]);
    assert.deepEqual([5, 65, 3_700, 90_000].map(formatDuration), ["5 s", "1 min", "1 h 1 min", "1 d 1 h"]);
    assert.deepEqual(
        [
            formatShare(0, 9),
            formatShare(9, 9),
            formatShare(99_999, 100_000),
            formatShare(1, 100_000),
            formatShare(1, 0),
        ],
        ["0 %", "100 %", "99.9 %", "0.1 %", "–"],
    );
});

test("where the feed is, and how long until the next try", () => {
    assert.equal(liveUrl(new URL("https://kvasir.example.org/dashboard")), "wss://kvasir.example.org/live");
    assert.equal(liveUrl(new URL("http://127.0.0.1:8000/dashboard")), "ws://127.0.0.1:8000/live");
    assert.deepEqual(
        [0, 1, 2, 30].map((n) => reconnectMs(n, 0)),
        [500, 1000, 2000, 30_000],
    );
    assert.equal(reconnectMs(0, 1), 250);
});

/** Sockets that do only what the test does with them. */
class HeldSocket {
    static made = [];
    constructor(url) {
        this.url = url;
        this.isClosed = false;
        HeldSocket.made.push(this);
    }
    close() {
        this.isClosed = true;
    }
    async tell(snapshot) {
        const packed = new Blob([JSON.stringify(snapshot)]).stream().pipeThrough(new CompressionStream("gzip"));
        await this.onmessage({ data: await new Response(packed).arrayBuffer() });
    }
}

/** A link over held sockets, with a clock that the test turns. */
function held(run) {
    return async () => {
        HeldSocket.made = [];
        globalThis.WebSocket = HeldSocket;
        let nowMs = 0;
        mock.method(performance, "now", () => nowMs);
        mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
        const heard = [];
        const states = [];
        const link = new LiveLink(
            "ws://site/live",
            (snapshot) => heard.push(snapshot.at),
            (state) => states.push(state.phase),
        );
        const pass = (ms) => {
            for (let left = ms; left > 0; left -= 250) {
                nowMs += 250;
                mock.timers.tick(250);
            }
        };
        try {
            link.start();
            await run({ link, heard, states, pass, sockets: HeldSocket.made });
        } finally {
            link.stop();
            mock.timers.reset();
            mock.restoreAll();
        }
    };
}

test("unpack reads gzipped JSON", async () => {
    const packed = new Blob(['{"at": 7}']).stream().pipeThrough(new CompressionStream("gzip"));
    assert.deepEqual(await unpack(await new Response(packed).arrayBuffer()), { at: 7 });
});

test(
    "snapshots come, late ones are dropped, and old data is told",
    held(async ({ link, heard, states, pass, sockets }) => {
        assert.equal(link.state.phase, "connecting");
        await sockets[0].tell({ at: 10 });
        await sockets[0].tell({ at: 9 });
        await sockets[0].tell({ at: 11 });
        assert.deepEqual(heard, [10, 11]);
        assert.equal(link.state.phase, "live");
        pass(OLD_S * 1000 + 1000);
        assert.equal(states.at(-1), "old");
        await sockets[0].tell({ at: 12 });
        assert.equal(link.state.phase, "live");
    }),
);

test(
    "a closed line is dialled again, each time later, and a good one forgets that",
    held(async ({ heard, pass, sockets }) => {
        for (let n = 1; n <= 4; n++) {
            sockets.at(-1).onclose({ code: 1006 });
            assert.equal(sockets.length, n);
            pass(reconnectMs(n - 1, 0));
            assert.equal(sockets.length, n + 1);
        }
        await sockets.at(-1).tell({ at: 3 });
        sockets.at(-1).onclose({ code: 1006 });
        pass(500);
        assert.equal(sockets.length, 6);
        await sockets.at(-1).tell({ at: 1 }); // another process, whose clock is behind
        assert.deepEqual(heard, [3, 1]);
    }),
);

test(
    "a silent line is hung up and dialled anew",
    held(async ({ pass, sockets }) => {
        await sockets[0].tell({ at: 1 });
        pass(13_000);
        assert.ok(sockets[0].isClosed);
        pass(1000);
        assert.equal(sockets.length, 2);
        await sockets[0].tell({ at: 5 }); // what the old one still says counts for nothing
        pass(13_000);
        assert.ok(sockets[1].isClosed);
    }),
);

test(
    "a full site is asked again later",
    held(async ({ link, pass, sockets }) => {
        sockets[0].onclose({ code: 1013 });
        assert.equal(link.state.phase, "full");
        pass(29_000);
        assert.equal(sockets.length, 1);
        pass(1000);
        assert.equal(sockets.length, 2);
        await sockets[1].tell({ at: 1 });
        assert.equal(link.state.phase, "live");
    }),
);

test(
    "a hidden page hangs up and comes back",
    held(async ({ pass, sockets }) => {
        document.visibilityState = "hidden";
        listeners.get("visibilitychange")();
        assert.ok(sockets[0].isClosed);
        pass(60_000);
        assert.equal(sockets.length, 1);
        document.visibilityState = "visible";
        listeners.get("visibilitychange")();
        assert.equal(sockets.length, 2);
    }),
);
