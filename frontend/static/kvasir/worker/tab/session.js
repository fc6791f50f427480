/**
 * One session of contributing, from the kernel's self-test to the last answer: puts an agent together and lets it work.
 * Twin of kvasir/worker/agent/start.py. `tab_worker.js` makes one for each start; pages see it through the published
 * state alone.
 */

import { CheckedKernel } from "../../kernels/checked_kernel.js";
import { chooseKernel, kernelMemory } from "../../kernels/kernel_choice.js";
import { Agent } from "../agent/agent.js";
import { AgentEdge } from "../agent/edge.js";
import { Fetcher } from "../agent/fetch.js";
import { MarketClient } from "../agent/market_client.js";
import { readRewards, rewardFacts } from "../agent/rewards.js";
import { Holdings } from "../serving/holdings.js";
import { RelayWorker } from "../serving/join.js";
import { KernelKeeper } from "../serving/kernel_keeper.js";
import { roomForExperts } from "../slices/budget.js";
import { SliceCache } from "../slices/cache.js";
import { RangeSource } from "../slices/http.js";
import { SliceFolder } from "../slices/paths.js";
import { SliceStore } from "../slices/store.js";
import { operatingSystem } from "./device_facts.js";
import { ServedCounter, TabReport } from "./report.js";

/** @import { AgentMemory } from "../agent/state.js" */
/** @import { SessionOptions } from "../agent/edge.js" */
/** @import { KeeperNews } from "../serving/kernel_keeper.js" */
/** @import { StatePublisher } from "./state_publisher.js" */

const TICK_MS = 1_000;
const REWARDS_EVERY_TICKS = 15;
const NODE_NAME = "browser tab";

/**
 * @typedef {object} SessionWorld
 * @property {string} site  its address, without a slash at its end
 * @property {AgentMemory} memory
 * @property {StatePublisher} publisher
 * @property {boolean} software
 * @property {KeeperNews} kernelNews
 */

export class TabSession {
    /** @param {SessionWorld} world @param {SliceFolder} folder */
    constructor(world, folder) {
        const { memory, publisher, software, kernelNews } = world;
        const { budgetBytes } = memory.settings;
        this.world = world;
        this.cache = new SliceCache(folder, budgetBytes);
        this.report = new TabReport(publisher);
        this.counter = new ServedCounter(memory.totalRowExperts);
        const report = (/** @type {Error} */ reason) => console.info(reason.message); // why the GPU is not used, say
        const choice = { budgetBytes: roomForExperts(budgetBytes), software, remembered: kernelMemory(), report };
        const makeKernel = async () => new CheckedKernel(await chooseKernel(choice));
        this.keeper = new KernelKeeper(makeKernel, folder, kernelNews);
        /** @type {Agent | null} */
        this.agent = null;
        this.nTicks = 0;
        this.hasEnded = false;
    }

    /**
     * Open storage and kernel. Throws StorageError, UnsupportedBrowserError or KernelError.
     * @param {SessionWorld} world
     */
    static async open(world) {
        const session = new TabSession(world, await SliceFolder.open());
        await session.keeper.open();
        return session;
    }

    /**
     * Contribute until `stop`. Throws AgentEndedError when it cannot go on.
     * @param {boolean} isPaused from the start
     */
    async run(isPaused) {
        this.agent = this.makeAgent();
        this.agent.setPaused(isPaused);
        this.report.state(this.agent.state);
        const ticking = setInterval(() => this.tick(), TICK_MS);
        try {
            await this.agent.run();
        } finally {
            clearInterval(ticking);
            this.tell();
            this.hasEnded = true;
            await this.keepTotal();
        }
    }

    /** Withdraw, answer what is under way, end. @param {string} reason */
    stop(reason) {
        this.agent?.stop(reason);
    }

    /** Free the kernel's memory. After `run`. */
    close() {
        this.keeper.close();
    }

    /** @returns {Agent} */
    makeAgent() {
        const { site, memory } = this.world;
        const { budgetBytes, invite } = memory.settings;
        const loader = {
            load: (/** @type {import("../slices/store.js").HeldSlice} */ held) => this.keeper.loadSlice(held),
            unload: (/** @type {import("../slices/store.js").HeldSlice} */ held) => this.keeper.unloadSlice(held),
        };
        const makeStore = (/** @type {string} */ token) => new SliceStore(this.cache, new RangeSource(token));
        this.fetcher = new Fetcher(site, budgetBytes, makeStore, loader);
        const options = { roomBytes: roomForExperts(budgetBytes), invite, name: NODE_NAME, facts: () => this.facts() };
        return new Agent(options, {
            market: new MarketClient(site),
            fetcher: this.fetcher,
            memory,
            report: this.report,
            makeEdge: (onChange) => new AgentEdge((session) => this.makeRelayWorker(session), onChange),
            makeHoldings: (slices) => new Holdings(this.keeper, slices),
            clock: () => performance.now() / 1000,
            jitter: Math.random,
            wallClock: () => Date.now() / 1000,
        });
    }

    /** @param {SessionOptions} options */
    makeRelayWorker({ holdings, relayUrl, token, onJoined, onLost }) {
        /** @param {{nJobs: number, nPairs: number}} done */
        const onComputed = ({ nJobs, nPairs }) => this.counter.add(nJobs, nPairs);
        return new RelayWorker({ relayUrl, token }, holdings, { onJoined, onLost, onComputed });
    }

    /** What heartbeats say of this tab. @returns {Record<string, string | number>} */
    facts() {
        const { publisher, memory } = this.world;
        const { rowExpertsPerS } = this.counter.facts(0);
        return {
            os: operatingSystem(),
            device_kind: "browser",
            backend: this.keeper.backend,
            accelerator: (publisher.state.device?.adapter ?? "").slice(0, 200),
            ...(memory.settings.region ? { region: memory.settings.region } : {}),
            ...(rowExpertsPerS > 0 ? { rows_per_s: rowExpertsPerS } : {}),
        };
    }

    tick() {
        this.tell();
        if (this.nTicks++ % REWARDS_EVERY_TICKS !== 0) return;
        void this.keepTotal();
        void this.askRewards();
    }

    /** Publish what changes by itself. */
    tell() {
        const { publisher, memory } = this.world;
        const { backend, name, fingerprint, loadedBytes, capacityBytes } = this.keeper;
        /** @type {("webgpu" | "wasm")[]} */
        const backends = backend === "both" ? ["webgpu", "wasm"] : [backend];
        const { nodeId, accountId, accountKey } = memory.identity;
        publisher.update({
            kernel: { name, fingerprint, backends, loadedBytes, capacityBytes },
            served: this.counter.facts(this.agent?.edge.nBackbones ?? 0),
            storage: { ...publisher.state.storage, downloadedBytes: this.fetcher?.nDownloaded ?? 0 },
            identity: { nodeId, accountId, hasRecoveryKey: accountKey !== "" },
        });
    }

    async keepTotal() {
        const { memory } = this.world;
        const { totalRowExperts } = this.counter.facts(0);
        if (totalRowExperts === memory.totalRowExperts) return;
        memory.totalRowExperts = totalRowExperts;
        await memory.save();
    }

    /** What the site says of this node's pay, and what the disk holds. */
    async askRewards() {
        const { site, memory, publisher } = this.world;
        const { quota = 0 } = (await navigator.storage.estimate?.()) ?? {};
        const usedBytes = await this.cache.usedBytes();
        publisher.update({ storage: { ...publisher.state.storage, usedBytes, quotaBytes: quota } });
        const { token } = memory.identity;
        const found = token ? await readRewards(site, token) : null;
        if (found?.status !== 200 || this.hasEnded) return;
        const { totalRowExperts } = this.counter.facts(0);
        const known = { totalRowExperts, rateMicrocredits: this.meanRate(), nowMs: Date.now() };
        publisher.update({ rewards: rewardFacts(found.answer, known) });
    }

    /** Microcredits of one row-expert, as promised for what is held. */
    meanRate() {
        const { pieces, rates } = this.world.memory.holding;
        let [sum, n] = [0, 0];
        for (const { range } of pieces) {
            const rate = rates[`${range.layer}:${range.start}-${range.stop}`] ?? 0;
            const nExperts = rate > 0 ? range.stop - range.start : 0;
            [sum, n] = [sum + rate * nExperts, n + nExperts];
        }
        return n > 0 ? sum / n : 0;
    }
}
