/**
 * The contributing tab as a whole: what the page's commands do, and in which phase it is.
 * `tab/main.js` makes one and hands it every message. One session at a time; a second tab of the same browser waits
 * until the first is gone. Everything that the page shows is in the published state.
 */

import { AgentEndedError, StorageError, UnsupportedBrowserError } from "../../errors.js";
import { NO_SIMD } from "../../kernels/wasm/builds.js";
import { readRewards } from "../agent/rewards.js";
import { AgentMemory } from "../agent/state.js";
import { adviseBudget, boundedBudget } from "../slices/budget.js";
import { SliceCache } from "../slices/cache.js";
import { SliceFolder } from "../slices/paths.js";
import { lookAtDevice } from "./device_facts.js";
import { RecordStore } from "./record_store.js";
import { SingleWorker } from "./single_worker.js";
import { pauseReason, problemOf, StatePublisher, UNKNOWN_SURROUNDINGS } from "./state_publisher.js";

/** @import { TabSession } from "./session.js" */
/** @import { PageCommand, Problem, StartOptions, WorkerMessage } from "./messages.js" */

const AT_REST = new Set(["idle", "failed", "elsewhere"]);

export class TabWorker {
    /** @param {(message: WorkerMessage) => void} post @param {string} site its address, without a slash at its end */
    constructor(post, site) {
        this.post = post;
        this.site = site;
        this.publisher = new StatePublisher((state) => post({ type: "state", state }));
        this.single = new SingleWorker();
        this.software = false;
        this.surroundings = UNKNOWN_SURROUNDINGS;
        /** @type {AgentMemory | null} */
        this.memory = null;
        /** @type {TabSession | null} */
        this.session = null;
        this.isLeaving = false;
        this.mustErase = false;
        this.isWaiting = false;
        /** @type {Problem | null} why a session is being ended by this side */
        this.lastProblem = null;
        /** @type {Promise<unknown>} commands that touch storage follow each other */
        this.queue = Promise.resolve();
    }

    /** Do what the page says. Never throws: what goes wrong is published. @param {PageCommand} command */
    hear(command) {
        switch (command.type) {
            case "surroundings":
                this.surroundings = command.surroundings;
                return this.settle();
            case "woke":
                return this.session?.agent?.wake();
            case "pause":
            case "resume":
                return this.enqueue(() => this.setPaused(command.type === "pause"));
            case "leave":
                return this.leave(command.erase);
            default:
                this.enqueue(() => this.obey(command));
        }
    }

    /** @param {() => Promise<void>} work */
    enqueue(work) {
        this.queue = this.queue.then(work).catch((error) => this.fail(error));
    }

    /** @param {PageCommand} command */
    async obey(command) {
        switch (command.type) {
            case "inspect":
                return this.inspect(command.software);
            case "start":
                this.software = command.software;
                return this.start(command.options);
            case "recoveryKey":
                return this.tellKey(command.id);
            case "restore":
                return this.done(command.id, await this.restore(command.accountKey));
            case "forget":
                return this.done(command.id, await this.forget());
        }
    }

    /** The records, opened once. @returns {Promise<AgentMemory>} */
    async open() {
        this.memory ??= await AgentMemory.load(await RecordStore.open());
        return this.memory;
    }

    /** What the visitor chose; null before the first choice. */
    saved() {
        const settings = this.memory?.settings;
        return settings !== undefined && settings.budgetBytes > 0 ? settings : null;
    }

    /** Look at device and records; go on with what was under way when the tab went away. @param {boolean} software */
    async inspect(software) {
        this.software = software;
        if (!self.isSecureContext) throw new StorageError("files and locks need a page that came by https");
        const memory = await this.open();
        const device = await lookAtDevice(software);
        const { nodeId, accountId, accountKey } = memory.identity;
        const identity = { nodeId, accountId, hasRecoveryKey: accountKey !== "" };
        this.publisher.update({ device, advice: adviseBudget(device), settings: this.saved(), identity });
        if (!AT_REST.has(this.publisher.state.phase)) return this.publisher.flush();
        if (!device.hasWebGpu && !device.hasWasmSimd) {
            const { NO_WEBGPU } = await import("../../kernels/kernel_choice.js");
            throw new UnsupportedBrowserError(`${NO_SIMD} ${NO_WEBGPU}`);
        }
        if (memory.settings.isWanted) return this.begin();
        if (await this.single.isElsewhere()) this.waitForOther();
        else this.publisher.turn("idle");
    }

    /** @param {StartOptions} options */
    async start(options) {
        if (!AT_REST.has(this.publisher.state.phase)) return;
        const memory = await this.open();
        const { accountKey = "" } = options;
        if (accountKey && accountKey !== memory.identity.accountKey) {
            await memory.saveIdentity({ nodeId: "", token: "", accountId: "", accountKey });
        }
        const { advice } = this.publisher.state;
        await memory.saveSettings({
            budgetBytes: advice === null ? options.budgetBytes : boundedBudget(options.budgetBytes, advice),
            onlyOnPower: options.onlyOnPower ?? false,
            onlyUnmetered: options.onlyUnmetered ?? false,
            invite: options.invite ?? "",
            region: options.region ?? "",
            isWanted: true,
            isPaused: false,
        });
        await this.begin();
    }

    /** Start a session with the saved settings, unless another tab has one. */
    async begin() {
        const memory = await this.open();
        if (!(await this.single.take())) return this.waitForOther();
        this.isLeaving = false;
        this.publisher.turn("starting", { settings: memory.settings, startedAtMs: Date.now() });
        void this.work(memory).catch((error) => this.fail(error));
    }

    /** @param {AgentMemory} memory */
    async work(memory) {
        const { site, publisher, software } = this;
        try {
            const { TabSession } = await import("./session.js"); // only now: it is most of the code
            const kernelNews = this.kernelNews();
            this.session = await TabSession.open({ site, memory, publisher, software, kernelNews });
            if (!this.isLeaving) {
                const reason = pauseReason(memory.settings, this.surroundings);
                publisher.turn(reason ? "paused" : "working", { pauseReason: reason });
                await this.session.run(reason !== "");
            }
            if (this.mustErase) await new SliceCache(await SliceFolder.open(), 0).clear();
        } finally {
            this.session?.close();
            this.session = null;
            this.single.release();
        }
        this.rest(null);
    }

    /** @returns {import("../serving/kernel_keeper.js").KeeperNews} */
    kernelNews() {
        return {
            onLost: (reason, retryS) => this.kernelLost(reason, retryS),
            onBack: () => this.settle(true),
            onHopeless: (detail) => this.stopFor({ code: "reload_needed", detail, retryAtMs: 0 }),
        };
    }

    /** Withdraw in order. @param {boolean} erase */
    leave(erase) {
        const { phase } = this.publisher.state;
        this.enqueue(async () => {
            await (await this.open()).saveSettings({ isWanted: false });
            this.publisher.update({ settings: this.saved() });
        });
        if (AT_REST.has(phase) || phase === "unsupported") return;
        [this.isLeaving, this.mustErase] = [true, erase];
        this.publisher.turn("leaving");
        this.session?.stop("the visitor ends it");
    }

    /** @param {boolean} isPaused */
    async setPaused(isPaused) {
        const memory = await this.open();
        await memory.saveSettings({ isPaused });
        this.settle();
    }

    /** Work or pause, as settings and surroundings say. @param {boolean} [isKernelBack] */
    settle(isKernelBack = false) {
        const { publisher, memory, session } = this;
        if (memory === null || !session?.agent || this.isLeaving) return;
        const reason = pauseReason(memory.settings, this.surroundings);
        session.agent.setPaused(reason !== "");
        if (isKernelBack) session.agent.setComputing(true);
        const { phase } = publisher.state;
        if (phase === "recovering" && !isKernelBack) return;
        if (phase === (reason ? "paused" : "working") && publisher.state.pauseReason === reason) return;
        publisher.turn(reason ? "paused" : "working", { pauseReason: reason });
        session.report.state(session.agent.state);
    }

    /** @param {string} reason @param {number} retryS */
    kernelLost(reason, retryS) {
        if (this.isLeaving) return;
        this.session?.agent?.setComputing(false);
        const problem = { code: "gpu_lost", detail: reason, retryAtMs: Date.now() + 1000 * retryS };
        this.publisher.turn("recovering", { problem });
    }

    /** End the session, and say why. @param {Problem} problem */
    stopFor(problem) {
        this.lastProblem = problem;
        this.isLeaving = true;
        this.session?.stop(problem.detail);
    }

    /** Nothing runs any more. @param {Problem | null} problem */
    rest(problem) {
        const shown = problem ?? this.lastProblem;
        [this.lastProblem, this.isLeaving, this.mustErase] = [null, false, false];
        const nothing = { ranges: [], download: null, kernel: null, isJoined: false, relayUrl: "", startedAtMs: 0 };
        const settings = this.saved();
        this.publisher.turn(shown === null ? "idle" : "failed", { ...nothing, problem: shown, settings });
    }

    /** @param {unknown} error */
    async fail(error) {
        const problem = problemOf(error);
        if (problem.code === "unsupported") return this.publisher.turn("unsupported", { problem });
        console.warn(error);
        const isUnknown = problem.code === "token_refused"; // it registers anew next time
        if (isUnknown) await this.memory?.saveIdentity({ nodeId: "", token: "" });
        if (this.session !== null) return this.stopFor(problem);
        if (error instanceof AgentEndedError) await this.memory?.saveSettings({ isWanted: false });
        this.rest(problem);
    }

    /** Another tab of this browser contributes: say so, and look again when it is gone. */
    waitForOther() {
        this.publisher.turn("elsewhere");
        if (this.isWaiting) return;
        this.isWaiting = true;
        void this.single.untilFree(new AbortController().signal).then(() => {
            this.isWaiting = false;
            this.memory = null; // the other one wrote to it
            this.enqueue(() => this.inspect(this.software));
        });
    }

    /** @param {string} accountKey @returns {Promise<string>} "" or what is wrong */
    async restore(accountKey) {
        if (this.session !== null) return "busy";
        const memory = await this.open();
        const found = await readRewards(this.site, accountKey);
        if (found === null) return "site_away";
        if (found.status !== 200 || found.answer.scope !== "account") return "token_refused";
        await memory.saveIdentity({ nodeId: "", token: "", accountId: found.answer.id, accountKey });
        this.publisher.update({ identity: { nodeId: "", accountId: found.answer.id, hasRecoveryKey: true } });
        return "";
    }

    /** @returns {Promise<string>} "" or what is wrong */
    async forget() {
        if (this.session !== null || (await this.single.isElsewhere())) return "busy";
        await (await this.open()).forget();
        await new SliceCache(await SliceFolder.open(), 0).clear();
        await this.inspect(this.software);
        return "";
    }

    /** @param {number} id */
    async tellKey(id) {
        const { accountKey } = (await this.open()).identity;
        this.post({ type: "recoveryKey", id, accountKey });
    }

    /** @param {number} id @param {string} problem */
    done(id, problem) {
        this.post({ type: "done", id, problem });
    }
}
