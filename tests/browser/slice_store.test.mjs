// A tab's slices against a scripted site: every byte once, whatever is cut; broken ones again; nothing beyond the budget.
// SLICE is a folder with a slice of the demo model, its manifest, and facts.json: etag, fingerprint, ranges.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import * as errors from "/static/kvasir/errors.js";
import { readSlice } from "/static/kvasir/slicing/slice_file.js";
import { SliceCache } from "/static/kvasir/worker/slices/cache.js";
import { Patience } from "/static/kvasir/worker/slices/download.js";
import { RangeSource } from "/static/kvasir/worker/slices/http.js";
import { parseManifest } from "/static/kvasir/worker/slices/manifest.js";
import { SliceFolder, sliceNames } from "/static/kvasir/worker/slices/paths.js";
import { offerAt, SliceStore } from "/static/kvasir/worker/slices/store.js";
import { MemoryDirectory } from "./memory_files.mjs";
import { ScriptedSite } from "./scripted_site.mjs";

const read = (name) => new Uint8Array(readFileSync(`${process.env.SLICE}/${name}`));
const SLICE = read("slice.gguf");
const MANIFEST = read("manifest.json");
const FACTS = JSON.parse(new TextDecoder().decode(read("facts.json")));
const RANGES = FACTS.ranges.map(([layer, start, stop]) => ({ layer, start, stop }));
const OFFER = offerAt("https://site.example/", FACTS.fingerprint, RANGES);
const PLENTY = 2 ** 30;

/** A store over an empty disk, and what is around it. */
function makeStore({ directory = new MemoryDirectory(), cacheBytes = PLENTY } = {}) {
    const site = new ScriptedSite(SLICE, MANIFEST, FACTS.etag);
    const waits = [];
    const pause = async (seconds) => void waits.push(seconds);
    const cache = new SliceCache(new SliceFolder(directory), cacheBytes);
    const source = new RangeSource("kvs-secret", { fetch: site.fetch });
    const store = new SliceStore(cache, source, new Patience({ pause, chance: () => 1 }));
    return { store, site, cache, directory, waits };
}

/** The data file of the offer. */
async function dataOf(directory) {
    return directory.files.get((await sliceNames(OFFER.fingerprint, OFFER.ranges)).data);
}

test("a slice is fetched in one request, verified, and its experts are where they should be", async () => {
    const { store, site, directory } = makeStore();
    const seen = [];
    const held = await store.obtain(OFFER, PLENTY, { progress: (done, total) => seen.push([done, total]) });
    assert.deepEqual((await dataOf(directory)).bytes, SLICE);
    assert.deepEqual(
        site.asked.map(({ url }) => url),
        [OFFER.manifestUrl, OFFER.sliceUrl],
    );
    assert.ok(site.asked.every(({ token }) => token === "Bearer kvs-secret"));
    assert.deepEqual(
        [seen[0], seen.at(-1)],
        [
            [0, SLICE.length],
            [SLICE.length, SLICE.length],
        ],
    );
    assert.equal(store.nDownloaded, SLICE.length);
    assert.deepEqual(
        held.facts.experts.map(({ layer, expert }) => [layer, expert]),
        FACTS.experts,
    );
    const [first] = held.facts.experts;
    assert.deepEqual([first.dModel, first.dFf, first.types], [FACTS.d_model, FACTS.d_ff, FACTS.types]);
});

test("what is there is verified again and costs no request", async () => {
    const { store, directory } = makeStore();
    await store.obtain(OFFER, PLENTY);
    const later = makeStore({ directory });
    await later.store.obtain(OFFER, PLENTY);
    assert.deepEqual([later.site.asked, later.store.nDownloaded], [[], 0]);
});

test("after every cut the next request asks for the rest, with If-Range", async () => {
    const { store, site, directory } = makeStore();
    site.cuts = [100_000, 0, 70_001];
    await store.obtain(OFFER, PLENTY);
    const last = SLICE.length - 1;
    assert.deepEqual(site.ranges, [
        `bytes=0-${last}`,
        `bytes=100000-${last}`,
        `bytes=100000-${last}`,
        `bytes=170001-${last}`,
    ]);
    assert.ok(site.asked.slice(1).every(({ ifRange }) => ifRange === FACTS.etag));
    assert.deepEqual((await dataOf(directory)).bytes, SLICE);
    assert.equal(store.nDownloaded, SLICE.length);
});

test("a tab that went away in the middle goes on in another one", async () => {
    const { store, site, directory } = makeStore();
    const gone = new AbortController();
    site.onChunk = (position) => position > 150_000 && gone.abort(new Error("the tab is closed"));
    await assert.rejects(store.obtain(OFFER, PLENTY, { signal: gone.signal }), /the tab is closed/);
    const there = (await dataOf(directory)).bytes.length;
    assert.ok(there > 0 && there < SLICE.length);
    const later = makeStore({ directory });
    await later.store.obtain(OFFER, PLENTY);
    assert.deepEqual(later.site.ranges, [`bytes=${there}-${SLICE.length - 1}`]);
    assert.equal(later.store.nDownloaded, SLICE.length - there);
});

test("only the broken expert is fetched again", async () => {
    const { store, directory } = makeStore();
    const { facts } = await store.obtain(OFFER, PLENTY);
    const broken = facts.experts[3];
    (await dataOf(directory)).bytes[broken.up.offset + 5] ^= 1;
    const later = makeStore({ directory });
    const held = await later.store.obtain(OFFER, PLENTY);
    const nBytes = broken.digested.reduce((sum, place) => sum + place.nBytes, 0);
    assert.deepEqual([held.nRepaired, later.site.ranges.length], [nBytes, broken.digested.length]);
    assert.deepEqual((await dataOf(directory)).bytes, SLICE);
});

test("a broken header is mended too", async () => {
    const { store, directory } = makeStore();
    await store.obtain(OFFER, PLENTY);
    (await dataOf(directory)).bytes[9] ^= 255;
    await makeStore({ directory }).store.obtain(OFFER, PLENTY);
    assert.deepEqual((await dataOf(directory)).bytes, SLICE);
});

test("bytes that stay wrong are an error, and the manifest is asked for anew next time", async () => {
    const { store, site, directory } = makeStore();
    site.change = (position, bytes) => bytes.map((byte, i) => (position + i === SLICE.length - 40 ? byte ^ 1 : byte));
    await assert.rejects(store.obtain(OFFER, PLENTY), errors.BrokenSliceError);
    assert.ok(![...directory.files.keys()].some((name) => name.endsWith(".manifest.json")));
});

test("a slice that changes while it is fetched starts again, three times at most", async () => {
    const { store, site } = makeStore();
    site.etag = '"another"'; // the manifest names the one before
    await assert.rejects(store.obtain(OFFER, PLENTY), /changed this slice 3 times/);
    assert.equal(site.ranges.length, 3);
});

test("busy servers are waited out as they say, refusals are errors at once", async () => {
    const { store, site, waits } = makeStore();
    site.statuses = [429, 503];
    await store.obtain(OFFER, PLENTY);
    assert.deepEqual(waits, [7, 7]);
    const refused = makeStore();
    refused.site.statuses = [403];
    await assert.rejects(refused.store.obtain(OFFER, PLENTY), errors.SourceRefusedError);
    const never = makeStore();
    never.site.cuts = Array(8).fill(0);
    await assert.rejects(never.store.obtain(OFFER, PLENTY), /8 attempts in a row brought nothing/);
    assert.deepEqual(never.waits, [0.5, 1, 2, 4, 8, 16, 30]);
});

test("a full disk keeps what came, and the rest follows when there is room", async () => {
    const { store, directory } = makeStore();
    directory.quotaBytes = 300_000;
    await assert.rejects(store.obtain(OFFER, PLENTY), errors.DiskFullError);
    const there = (await dataOf(directory)).bytes.length;
    assert.ok(there > 0);
    directory.quotaBytes = Infinity;
    const later = makeStore({ directory });
    await later.store.obtain(OFFER, PLENTY);
    assert.deepEqual(later.site.ranges, [`bytes=${there}-${SLICE.length - 1}`]);
});

test("what does not fit into memory is not fetched", async () => {
    const { store, site } = makeStore();
    await assert.rejects(store.obtain(OFFER, 150_000_000 + FACTS.expert_bytes - 1), errors.DoesNotFitError);
    assert.deepEqual(site.ranges, []);
    await store.obtain(OFFER, 150_000_000 + FACTS.expert_bytes);
});

test("the longest unused slice goes first, one in use never", async () => {
    const { store, cache, directory } = makeStore({ cacheBytes: SLICE.length + MANIFEST.length + 5_000 });
    const held = await store.obtain(OFFER, PLENTY);
    const other = { data: "other.gguf", state: "other.state.json", manifest: "other.manifest.json" };
    await assert.rejects(cache.makeRoom(other, 6_000), errors.CacheFullError);
    store.release(held);
    await cache.folder.write("young.gguf", new Uint8Array(100));
    await cache.makeRoom(other, 6_000);
    assert.deepEqual([...directory.files.keys()], ["young.gguf"]);
    await cache.clear();
    assert.equal(directory.files.size, 0);
});

test("a header that is cut anywhere, or claims what is not there, is refused", () => {
    const headerBytes = JSON.parse(new TextDecoder().decode(MANIFEST)).slice.header_bytes;
    const header = SLICE.slice(0, headerBytes);
    assert.equal(readSlice(header, SLICE.length).experts.length, FACTS.experts.length);
    for (let n = 0; n < headerBytes - 32; n += 7) {
        assert.throws(() => readSlice(header.subarray(0, n), SLICE.length), errors.BrokenSliceError, `cut at ${n}`);
    }
    assert.throws(() => readSlice(header, SLICE.length - 64), errors.BrokenSliceError);
    for (let place = 0; place < headerBytes; place += 1) {
        const other = header.slice();
        other[place] ^= 0x80;
        try {
            readSlice(other, SLICE.length);
        } catch (error) {
            assert.ok(error instanceof errors.BrokenSliceError, `byte ${place}: ${error.stack}`);
        }
    }
});

test("a manifest that does not add up is refused", () => {
    const sound = () => JSON.parse(new TextDecoder().decode(MANIFEST));
    const parse = (content) =>
        parseManifest(new TextEncoder().encode(JSON.stringify(content)), FACTS.fingerprint, RANGES);
    assert.equal(parse(sound()).nBytes, SLICE.length);
    const [key] = Object.keys(sound().experts);
    const wrongs = {
        format: (m) => (m.format = "kvasir-manifest-2"),
        "another model": (m) => (m.fingerprint = "0".repeat(64)),
        "an expert too few": (m) => delete m.experts[key],
        "no digest": (m) => (m.experts[key].sha256 = "0"),
        "half a byte": (m) => (m.experts[key].bytes = 0.5),
        "no tag": (m) => (m.slice.etag = "weak"),
        "overlapping pieces": (m) => (m.slice.pieces[1][0] = 0),
        "a piece outside": (m) => (m.slice.bytes = 1),
        "sums that differ": (m) => (m.slice.pieces[0][1] -= 32),
        "no pieces": (m) => (m.slice.pieces = []),
        "no slice": (m) => delete m.slice,
    };
    for (const [what, change] of Object.entries(wrongs)) {
        const content = sound();
        change(content);
        assert.throws(() => parse(content), errors.DownloadError, what);
    }
    assert.throws(() => parseManifest(new Uint8Array([255]), FACTS.fingerprint, RANGES), errors.DownloadError);
});
