/**
 * The page's end of the contributing worker: starts it, hands it what only a page can see, and tells who listens.
 * `contribute/page.js` makes one. It decides nothing and keeps nothing: a page that goes away takes only the view
 * with it.
 */

import { initialState } from "./messages.js";
import { keepAwake, watchSurroundings } from "./page_surroundings.js";

/** @typedef {import("./messages.js").ContributionState} ContributionState */
/** @typedef {import("./messages.js").PageCommand} PageCommand */
/** @typedef {import("./messages.js").WorkerMessage} WorkerMessage */

const LISTENING = new Set(["starting", "working", "recovering"]); // phases in which the screen may be kept on

export class ContributionClient {
    /**
     * @param {{software?: boolean}} [options]  `software`: the test switch that allows a software adapter
     */
    constructor({ software = false } = {}) {
        this.software = software;
        /** @type {ContributionState} */
        this.state = initialState();
        /** @type {Set<(state: ContributionState) => void>} */
        this.listeners = new Set();
        /** @type {Map<number, (message: WorkerMessage) => void>} */
        this.waiting = new Map();
        this.nAsked = 0;
        this.awake = keepAwake();
        const script = new URL("./main.js", import.meta.url);
        this.worker = new Worker(script, { type: "module", name: "kvasir-worker" });
        this.worker.addEventListener("message", (event) => this.heard(event.data));
        this.worker.addEventListener("error", (event) => this.broke(event.message || "the worker could not be loaded"));
        this.stopWatching = watchSurroundings({
            onChange: (surroundings) => this.send({ type: "surroundings", surroundings }),
            onWake: () => this.send({ type: "woke" }),
        });
        this.inspect();
    }

    /**
     * Hear every published state, the last one at once.
     * @param {(state: ContributionState) => void} listener
     * @returns {() => void} ends it
     */
    subscribe(listener) {
        this.listeners.add(listener);
        listener(this.state);
        return () => this.listeners.delete(listener);
    }

    /** Look at the device again; `state.device`, `.advice` and `.settings` follow. */
    inspect() {
        this.send({ type: "inspect", software: this.software });
    }

    /** Begin to contribute. Call it only after consent. @param {import("./messages.js").StartOptions} options */
    start(options) {
        void navigator.storage?.persist?.().catch(() => false); // asked for only now: some browsers show a question
        this.send({ type: "start", options, software: this.software });
    }

    /** Take no more work; what is loaded stays. */
    pause() {
        this.send({ type: "pause" });
    }

    /** Go on after `pause`. */
    resume() {
        this.send({ type: "resume" });
    }

    /** Withdraw in order. @param {{erase?: boolean}} [options]  `erase`: delete the weights from the disk too */
    leave({ erase = false } = {}) {
        this.send({ type: "leave", erase });
    }

    /** The account's key, to be written down by the visitor; "" while there is none. @returns {Promise<string>} */
    async recoveryKey() {
        const reply = await this.ask((id) => ({ type: "recoveryKey", id }));
        return reply.type === "recoveryKey" ? reply.accountKey : "";
    }

    /**
     * Work for another account from the next start on.
     * @param {string} accountKey
     * @returns {Promise<string>} "" or what is wrong with it
     */
    async restore(accountKey) {
        const reply = await this.ask((id) => ({ type: "restore", id, accountKey }));
        return reply.type === "done" ? reply.problem : "";
    }

    /** Delete all that this browser keeps: identity, settings, weights. @returns {Promise<string>} "" or why not */
    async forget() {
        const reply = await this.ask((id) => ({ type: "forget", id }));
        return reply.type === "done" ? reply.problem : "";
    }

    /** Ask the browser to keep the screen on while contributing. @param {boolean} isWanted */
    setKeepAwake(isWanted) {
        this.awake.setWanted(isWanted);
    }

    /** End the worker at once, without goodbye: what a closed tab does. */
    close() {
        this.stopWatching();
        this.awake.setActive(false);
        this.worker.terminate();
    }

    /** @param {PageCommand} command */
    send(command) {
        this.worker.postMessage(command);
    }

    /** @param {(id: number) => PageCommand} command @returns {Promise<WorkerMessage>} */
    ask(command) {
        const id = ++this.nAsked;
        return new Promise((resolve) => {
            this.waiting.set(id, resolve);
            this.send(command(id));
        });
    }

    /** @param {WorkerMessage} message */
    heard(message) {
        if (message.type === "state") {
            this.state = message.state;
            this.awake.setActive(LISTENING.has(this.state.phase));
            for (const listener of this.listeners) listener(this.state);
            return;
        }
        this.waiting.get(message.id)?.(message);
        this.waiting.delete(message.id);
    }

    /** The worker itself failed: say so in the state, since it cannot. @param {string} detail */
    broke(detail) {
        const problem = { code: "defect", detail, retryAtMs: 0 };
        this.heard({ type: "state", state: { ...this.state, phase: "failed", activity: "none", problem } });
    }
}
