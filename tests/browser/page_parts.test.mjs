// What pages share and compute without drawing: numbers for people, the sentences of states, keys, the CSV of rewards.

import assert from "node:assert/strict";
import test from "node:test";

globalThis.gettext = (text) => text;
globalThis.ngettext = (one, many, n) => (n === 1 ? one : many);
globalThis.interpolate = (format, values) => format.replace(/%s/g, () => values.shift());
globalThis.document = { documentElement: { lang: "en" } };

const format = await import("/static/kvasir/ui/format.js");
const { headline, problemText } = await import("/static/kvasir/pages/contribute/texts.js");
const { askRewards, rewardsCsv, RewardsError } = await import("/static/kvasir/pages/rewards/client.js");
const { isAccountKey } = await import("/static/kvasir/pages/account_key.js");
const { initialState } = await import("/static/kvasir/worker/tab/messages.js");

test("bytes are read in powers of 1024, in three digits", () => {
    const shown = [0, 1, 1023, 1024, 1536, 10 * 1024, 100.4 * 1024 ** 2, 5.129 * 1024 ** 3, 2 ** 50].map(
        format.formatBytes,
    );
    assert.deepEqual(shown, [
        "0 bytes",
        "1 byte",
        "1,023 bytes",
        "1 KiB",
        "1.5 KiB",
        "10 KiB",
        "100 MiB",
        "5.13 GiB",
        "1,024 TiB",
    ]);
});

test("a share that is nearly all is never called all, nor one that is nearly nothing nothing", () => {
    const shown = [0, 0.00001, 0.5, 0.9931, 0.99999, 1].map(format.formatShare);
    assert.deepEqual(shown, ["0%", "0.1%", "50%", "99.3%", "99.9%", "100%"]);
});

test("credits keep the more decimals the smaller they are", () => {
    const shown = [0, 1, 1500, 312_400, 48_291_234, 2_871_476_000].map((n) => format.formatCredits(n));
    assert.deepEqual(shown, ["0", "0.000001", "0.0015", "0.3124", "48.291", "2,871.5"]);
    assert.equal(format.formatCredits(49_490_000, 3), "49.490");
});

test("spans are told in their two largest units", () => {
    const shown = [-1, 0.4, 59, 60, 3599, 3600, 86_400, 200_000].map(format.formatSpan);
    assert.deepEqual(shown, ["0 s", "0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "24 h 0 min", "2 d 7 h"]);
    assert.deepEqual([format.formatMs(0.25), format.formatMs(120.4)], ["0.3 ms", "120 ms"]);
    assert.deepEqual([7, 9999, 33_463].map(format.formatCompact), ["7", "9,999", "33.5K"]);
});

test("numbers are written as the page's language writes them", () => {
    document.documentElement.lang = "id";
    assert.equal(format.formatCredits(2_871_476_000), "2.871,5");
    document.documentElement.lang = "en";
});

test("every phase has a title and a sentence, and only a serving tab is green", () => {
    const phases = [
        "idle",
        "starting",
        "working",
        "paused",
        "recovering",
        "leaving",
        "elsewhere",
        "unsupported",
        "failed",
    ];
    const heads = phases.map((phase) => headline({ ...initialState(), phase }));
    assert.ok(heads.every(({ title, text }) => title && text));
    assert.equal(new Set(heads.map(({ title }) => title)).size, phases.length);
    assert.ok(heads.every(({ tone }) => tone !== "good"));
    assert.equal(headline({ ...initialState(), phase: "working", activity: "serving" }).tone, "good");
});

test("a download says its true bytes", () => {
    const download = { layer: 3, start: 0, stop: 8, doneBytes: 3 * 1024 ** 2, totalBytes: 7 * 1024 ** 2, bytesPerS: 1 };
    const { text } = headline({ ...initialState(), phase: "working", activity: "downloading", download });
    assert.equal(text, "Downloading experts: 3 MiB of 7 MiB");
});

test("every problem of the worker has a sentence of its own, and an unknown one still has one", () => {
    const codes = [
        "site_away",
        "relay_away",
        "nothing_wanted",
        "no_room",
        "download_failed",
        "quarantined",
        "token_refused",
        "invite_needed",
        "registration_closed",
        "refused",
        "storage_unavailable",
        "memory",
        "gpu_lost",
        "reload_needed",
        "kernel",
        "unsupported",
        "model_changed",
        "defect",
    ];
    assert.equal(new Set(codes.map(problemText)).size, codes.length);
    assert.equal(problemText("of another version"), problemText("defect"));
});

test("what can be an account's key", () => {
    const key = `kva-${"0a".repeat(8)}-${"aB_-".repeat(10)}xyz`;
    assert.ok(isAccountKey(key));
    for (const wrong of ["", key.slice(1), `${key}x`, key.replace("kva", "kvs"), ` ${key}`, key.toUpperCase()])
        assert.ok(!isAccountKey(wrong));
});

/** Answer fetches in turn; what was asked is kept. */
function answers(...replies) {
    const asked = [];
    globalThis.fetch = async (url, { headers }) => {
        asked.push([url, headers.authorization]);
        const reply = replies.shift();
        if (reply instanceof Error) throw reply;
        return new Response(JSON.stringify(reply.body), { status: reply.status ?? 200 });
    };
    return asked;
}

const item = (day, reason = "") => ({
    node_id: "n1",
    fingerprint: "f",
    layer: 3,
    experts: [0, 8],
    day,
    row_experts: 5,
    microcredits: 5000,
    paid: !reason,
    reason,
});

test("the CSV has every page, a line each, quoted where it must be", async () => {
    const pages = [
        { items: [item("2025-12-02")], next: "20424.7" },
        { items: [item("2025-12-01", 'a "lie", proven')], next: null },
    ];
    const asked = answers(...pages.map((body) => ({ body })));
    const lines = (await rewardsCsv("kva-x", { paid: "" })).split("\r\n");
    assert.deepEqual(lines.slice(1), [
        "2025-12-02,n1,f,3,0,7,5,5000,true,",
        '2025-12-01,n1,f,3,0,7,5,5000,false,"a ""lie"", proven"',
        "",
    ]);
    assert.deepEqual(asked, [
        ["/api/rewards?limit=1000", "Bearer kva-x"],
        ["/api/rewards?cursor=20424.7&limit=1000", "Bearer kva-x"],
    ]);
});

test("a refusal keeps its code, and silence is told as such", async () => {
    answers({ status: 401, body: { error: { code: "account_unknown", message: "no" } } }, new TypeError("network"));
    await assert.rejects(
        askRewards("kva-x"),
        (error) => error instanceof RewardsError && error.code === "account_unknown",
    );
    await assert.rejects(askRewards("kva-x"), (error) => error.code === "away");
});
