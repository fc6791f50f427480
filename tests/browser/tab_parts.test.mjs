// Small parts of the contributing tab: budget, conditions, figures, rewards, what is published, a kernel that comes back.

import assert from "node:assert/strict";
import test from "node:test";

import { KernelLostError } from "/static/kvasir/errors.js";
import { News } from "/static/kvasir/worker/agent/agent.js";
import { workerState } from "/static/kvasir/worker/agent/plan_state.js";
import { readRewards, rewardFacts } from "/static/kvasir/worker/agent/rewards.js";
import { NO_SETTINGS, piecesWithin, rotateInS } from "/static/kvasir/worker/agent/state.js";
import { KernelKeeper } from "/static/kvasir/worker/serving/kernel_keeper.js";
import { adviseBudget, boundedBudget } from "/static/kvasir/worker/slices/budget.js";
import { isMetered } from "/static/kvasir/worker/tab/page_surroundings.js";
import { ServedCounter, TabReport } from "/static/kvasir/worker/tab/report.js";
import { pauseReason, StatePublisher, UNKNOWN_SURROUNDINGS } from "/static/kvasir/worker/tab/state_publisher.js";

const GIB = 2 ** 30;
const DEVICE = {
    hasWebGpu: true,
    hasWasmSimd: true,
    adapter: "a GPU",
    isSoftwareAdapter: false,
    gpuBytesMost: 16 * GIB,
    memoryBytes: 16 * GIB,
    diskFreeBytes: 100 * GIB,
    isDiskKept: true,
    nThreads: 8,
    isMobile: false,
};

test("the budget's bounds follow from memory, GPU, disk and kind of device", () => {
    assert.deepEqual(adviseBudget(DEVICE), {
        suggestedBytes: 4 * GIB,
        leastBytes: 200_000_000,
        mostBytes: 8 * GIB,
        boundBy: "memory",
    });
    assert.equal(adviseBudget({ ...DEVICE, isMobile: true }).mostBytes, 4 * GIB);
    assert.equal(adviseBudget({ ...DEVICE, isMobile: true }).suggestedBytes, 2 * GIB);
    assert.equal(adviseBudget({ ...DEVICE, diskFreeBytes: 2 * GIB }).boundBy, "disk");
    const small = adviseBudget({ ...DEVICE, gpuBytesMost: GIB, hasWasmSimd: false });
    assert.deepEqual([small.boundBy, small.mostBytes], ["gpu", 18 * 2 ** 26]); // 1 GiB and the program, rounded down
    assert.equal(adviseBudget({ ...DEVICE, memoryBytes: 0 }).mostBytes, 2 * GIB);
    const none = adviseBudget({ ...DEVICE, memoryBytes: GIB / 4, isMobile: true });
    assert.ok(none.mostBytes < none.leastBytes);
    assert.equal(boundedBudget(99 * GIB, adviseBudget(DEVICE)), 8 * GIB);
    assert.equal(boundedBudget(1, adviseBudget(DEVICE)), 200_000_000);
});

test("it pauses for the visitor, for battery and for metered lines, where the browser says so", () => {
    const choosy = { ...NO_SETTINGS, onlyOnPower: true, onlyUnmetered: true };
    assert.equal(pauseReason(choosy, UNKNOWN_SURROUNDINGS), "");
    assert.equal(pauseReason(choosy, { isOnPower: false, isMetered: true, isVisible: true }), "battery");
    assert.equal(pauseReason(choosy, { isOnPower: true, isMetered: true, isVisible: true }), "metered");
    assert.equal(pauseReason(NO_SETTINGS, { isOnPower: false, isMetered: true, isVisible: true }), "");
    assert.equal(pauseReason({ ...choosy, isPaused: true }, UNKNOWN_SURROUNDINGS), "visitor");
    const lines = [
        [undefined, null],
        [{}, null],
        [{ type: "wifi" }, false],
        [{ type: "cellular" }, true],
        [{ saveData: true }, true],
    ];
    assert.deepEqual(
        lines.map(([line]) => isMetered(line)),
        lines.map(([, told]) => told),
    );
});

test("row-experts are counted in all and over ten seconds", () => {
    let now = 1_000_000;
    const counter = new ServedCounter(100, () => now);
    counter.add(2, 30);
    now += 5_000;
    counter.add(1, 20);
    assert.deepEqual(counter.facts(3), {
        nRequests: 3,
        nRowExperts: 50,
        rowExpertsPerS: 5,
        totalRowExperts: 150,
        lastAtMs: 1_005_000,
        nBackbones: 3,
    });
    now += 7_000;
    assert.equal(counter.facts(0).rowExpertsPerS, 2);
    now += 60_000;
    assert.equal(counter.facts(0).rowExpertsPerS, 0);
});

test("rewards are the site's numbers; what is pending is reckoned", async () => {
    const answer = {
        earned_microcredits: 1500,
        paid_row_experts: 60,
        unpaid_row_experts: 10,
        withheld_microcredits: 7,
        nodes: [{ quarantined: false }],
    };
    const facts = rewardFacts(answer, { totalRowExperts: 100, rateMicrocredits: 1500.5, nowMs: 5 });
    assert.deepEqual([facts.pendingRowExperts, facts.pendingMicrocredits, facts.verifiedShare], [30, 45015, 0.6]);
    assert.equal(rewardFacts(answer, { totalRowExperts: 0, rateMicrocredits: 1, nowMs: 5 }).pendingRowExperts, 0);
    const fetch = async (url, { headers }) => new Response(JSON.stringify({ url, ...headers }), { status: 401 });
    const told = await readRewards("https://site.example", "kva-key", fetch);
    assert.deepEqual(told, {
        status: 401,
        answer: { url: "https://site.example/api/rewards?limit=1", authorization: "Bearer kva-key" },
    });
    assert.equal(await readRewards("", "", async () => Promise.reject(new TypeError("away"))), null);
});

test("the state is published at once when something turns, else bundled", async () => {
    const posted = [];
    const publisher = new StatePublisher((state) => posted.push(state));
    publisher.turn("working");
    publisher.update({ startedAtMs: 1 });
    publisher.update({ startedAtMs: 2 });
    assert.equal(posted.length, 1);
    publisher.update({ isJoined: true });
    assert.deepEqual([posted.length, posted[1].startedAtMs, posted[1].phase], [2, 2, "working"]);
    publisher.update({ startedAtMs: 3 });
    while (posted.length < 3) await new Promise((resolve) => setTimeout(resolve, 1));
    assert.deepEqual([posted.length, posted[2].startedAtMs], [3, 3]);
});

test("what an agent does becomes activity, ranges, download and problems", () => {
    const publisher = new StatePublisher(() => {});
    const report = new TabReport(publisher, () => 1000);
    publisher.turn("working");
    const range = { layer: 1, start: 2, stop: 4 };
    const piece = { range, nBytes: 8, kernel: "kx1", leaseId: "", isFetched: false };
    const show = (known) => {
        report.state(workerState({ roomBytes: 1, ...known }));
        return publisher.state;
    };
    assert.equal(show({}).activity, "registering");
    assert.equal(show({ nodeId: "n" }).activity, "asking");
    report.say("waiting", { reason: "expert coverage at target", retryS: 5 });
    assert.equal(show({ nodeId: "n" }).activity, "waiting");
    assert.deepEqual(publisher.state.problem, {
        code: "nothing_wanted",
        detail: "expert coverage at target",
        retryAtMs: 6000,
    });
    report.say("promised");
    assert.equal(publisher.state.problem, null);
    assert.equal(show({ nodeId: "n", pieces: [piece], isFetching: true }).activity, "downloading");
    report.progress(piece, 4, 8);
    assert.deepEqual(publisher.state.download, { ...range, doneBytes: 4, totalBytes: 8, bytesPerS: 0 });
    report.say("verifying", { piece });
    assert.equal(publisher.state.activity, "verifying");
    const fetched = { ...piece, isFetched: true };
    assert.deepEqual(show({ nodeId: "n", pieces: [fetched] }).ranges, [{ ...range, nBytes: 8, step: "fetched" }]);
    assert.equal(publisher.state.download, null);
    assert.equal(show({ nodeId: "n", pieces: [fetched], served: [range] }).activity, "dialling");
    assert.equal(show({ nodeId: "n", pieces: [fetched], served: [range], isJoined: true }).activity, "serving");
    assert.equal(publisher.state.ranges[0].step, "served");
    report.say("lost", { problem: "nobody answers" });
    assert.equal(publisher.state.problem.code, "relay_away");
    report.say("joined");
    assert.equal(publisher.state.problem, null);
    report.say("away", { problem: "no", code: "quarantined", retryS: 600 });
    assert.deepEqual([publisher.state.problem.code, publisher.state.problem.retryAtMs], ["quarantined", 601_000]);
});

test("tokens are exchanged when a third of their life is left, pieces kept as far as the budget goes", () => {
    assert.equal(rotateInS({ sinceS: 0, expiresS: 300 }, 50), 150);
    assert.equal(rotateInS({ sinceS: 0, expiresS: 0 }, 50), Infinity);
    const pieces = [5, 9, 3].map((nBytes) => ({
        range: { layer: 0, start: 0, stop: 1 },
        nBytes,
        kernel: "",
        leaseId: "",
        isFetched: true,
    }));
    assert.deepEqual(
        piecesWithin(pieces, 8).map(({ nBytes, isFetched }) => [nBytes, isFetched]),
        [
            [5, false],
            [3, false],
        ],
    );
});

test("news is remembered while nobody waits", async () => {
    const news = new News();
    news.tell();
    await news.wait(60);
    const waiting = news.wait(60);
    news.tell();
    await waiting;
    await news.wait(0.01);
});

/** A kernel whose device a test can lose. */
function makeKernel() {
    const kernel = {
        backend: "webgpu",
        name: "kx1",
        fingerprint: "f",
        isClosed: false,
        compute: async () => "outputs",
    };
    kernel.lost = new Promise((resolve) => (kernel.lose = resolve));
    kernel.close = () => (kernel.isClosed = true);
    return kernel;
}

/** A keeper of such kernels; `nFail` attempts from the second kernel on give none. `go` ends its waits. */
async function makeKeeper(nFail) {
    const made = [];
    const news = [];
    const waits = [];
    let nLeft = nFail;
    const heard = {
        onLost: (reason, retryS) => news.push(["lost", reason, retryS]),
        onBack: () => news.push(["back"]),
        onHopeless: (reason) => news.push(["hopeless", reason]),
    };
    const make = async () => {
        if (made.length > 0 && nLeft-- > 0) throw new Error("no adapter");
        made.push(makeKernel());
        return made.at(-1);
    };
    let go = () => undefined;
    const gate = new Promise((resolve) => (go = resolve));
    const sleep = async (seconds) => {
        waits.push(seconds);
        await gate;
    };
    const keeper = new KernelKeeper(make, {}, heard, { sleep, nowS: () => 0 });
    await keeper.open();
    const until = async (word) => {
        while (news.at(-1)?.[0] !== word) await new Promise((resolve) => setTimeout(resolve, 1));
    };
    return { keeper, made, news, waits, until, go };
}

test("a lost device is replaced; what is asked meanwhile fails at once", async () => {
    const { keeper, made, news, waits, until, go } = await makeKeeper(1);
    made[0].lose("the GPU process died");
    await until("lost");
    await assert.rejects(keeper.compute({}), KernelLostError);
    go();
    await until("back");
    assert.deepEqual([news[0], waits, made[0].isClosed], [["lost", "the GPU process died", 2], [2, 10], true]);
    assert.equal(await keeper.compute({}), "outputs");
});

test("after three attempts in a row the page must be loaded again", async () => {
    const { made, news, waits, until, go } = await makeKeeper(99);
    go();
    made[0].lose("the GPU process died");
    await until("hopeless");
    assert.deepEqual(
        [waits, news.at(-1)],
        [
            [2, 10, 60],
            ["hopeless", "no adapter"],
        ],
    );
});

test("a kernel that is closed on purpose is not brought back", async () => {
    const { keeper, made, news } = await makeKeeper(0);
    keeper.close();
    made[0].lose("destroyed");
    await new Promise((resolve) => setImmediate(resolve));
    assert.deepEqual([news, made.length, made[0].isClosed], [[], 1, true]);
});
