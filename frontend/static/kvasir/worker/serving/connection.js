/**
 * The worker's side of one backbone's connection: handshake, checks, answers. join.js makes one for each edge.
 * Everything that a backbone sends is answered, or ends the connection with a reason. Only checked requests reach the
 * kernel, and connections do not affect each other.
 */

import { WireVersionError } from "../../errors.js";
import { clipped, goaway, pause, pong, RefuseCode, refuse, welcome } from "../../wire/frames.js";
import { Kind, kindName, PROTOCOL_LIMITS, WireType } from "../../wire/header.js";
import { answerBytes } from "../../wire/split.js";
import { dispatchFault, helloRefusal } from "./admission.js";

/** @typedef {import("../../wire/frames.js").Frame} Frame */
/** @typedef {import("../../wire/frames.js").Dispatch} Dispatch */
/** @typedef {import("../../wire/frames.js").Hello} Hello */
/** @typedef {import("../../wire/frames.js").Refuse} Refuse */
/** @typedef {import("./compute.js").Job} Job */

/**
 * The owner of all connections.
 * @typedef {object} Registry
 * @property {() => Refuse | null} refusal why no further backbone is accepted, or null
 * @property {() => number} pauseMs the length of the current pause, or 0
 * @property {(connection: Connection) => void} connectionChanged something was answered, sent or closed
 */

/**
 * What all connections of a worker share.
 * @typedef {object} Service
 * @property {import("./compute.js").Holdings} holdings
 * @property {import("./compute.js").ComputeQueue} queue
 * @property {Readonly<import("../../wire/header.js").Limits>} limits
 * @property {string} name this software, for people
 */

/** One edge through a relay. Implements LinkOwner. */
export class Connection {
    #service;
    #registry;
    /** @type {Hello | null} */
    #hello = null;
    #owedBytes = 0;
    /** @type {Dispatch[]} over the budget: computed only after answers were sent */
    #backlog = [];
    /** @type {Job[]} parts of one dispatch; more are announced */
    #together = [];

    /**
     * @param {Service} service
     * @param {Registry} registry
     * @param {import("../../relay/link.js").RelayLink} link
     */
    constructor(service, registry, link) {
        this.#service = service;
        this.#registry = registry;
        this.link = link;
    }

    /** @returns {boolean} whether the handshake is done */
    get isWelcome() {
        return this.#hello !== null;
    }

    /** @returns {boolean} whether answers are due or not sent yet */
    get owes() {
        const isAnyOwed = this.#owedBytes > 0 || this.#backlog.length > 0 || this.link.queuedBytes > 0;
        return isAnyOwed && !this.link.isClosing;
    }

    /**
     * Send the reason if possible, and close.
     * @param {string} reason
     */
    end(reason) {
        if (this.link.isClosing) return;
        this.#forgetWork();
        if (!this.isWelcome) this.#send(refuse(RefuseCode.DEADLINE, clipped(reason)));
        this.link.close(reason);
    }

    /** @param {string} reason why this worker will stop */
    sayGoodbye(reason) {
        if (this.isWelcome) this.#send(goaway(clipped(reason)));
    }

    /** @param {number} milliseconds length of the pause; 0 ends it */
    sayPause(milliseconds) {
        if (this.isWelcome) this.#send(pause(milliseconds));
    }

    // Called by the link

    /** @param {Frame} frame */
    frameReceived(frame) {
        if (this.#hello === null) this.#shakeHands(frame);
        else if (frame.kind === Kind.DISPATCH) this.#accept(frame, this.#hello);
        else if (frame.kind === Kind.PING) this.#send(pong(frame.number));
        else if (frame.kind !== Kind.PONG && frame.kind !== Kind.GOAWAY) {
            this.end(`${kindName(frame.kind)} is not for a worker after the handshake`);
        }
    }

    /** @param {import("../../errors.js").WireError} error invalid bytes: answered with the reason */
    bytesRefused(error) {
        if (this.isWelcome) {
            this.end(error.message);
            return;
        }
        const code = error instanceof WireVersionError ? RefuseCode.VERSION : RefuseCode.MALFORMED;
        this.#refuse(refuse(code, clipped(error.message)));
    }

    /** Continue with dispatches that waited for answers to be sent. */
    bytesWentOut() {
        if (!this.link.isClosing) this.#submitWhatFits();
        this.#registry.connectionChanged(this);
    }

    /** Drop this backbone's requests. */
    linkClosed() {
        this.#forgetWork();
        this.#registry.connectionChanged(this);
    }

    /** @param {Frame} frame */
    #shakeHands(frame) {
        if (frame.kind !== Kind.HELLO) {
            this.#refuse(refuse(RefuseCode.MALFORMED, `the first frame is ${kindName(frame.kind)}, HELLO is needed`));
            return;
        }
        const { holdings, limits, name } = this.#service;
        const refusal = helloRefusal(frame, holdings) ?? this.#registry.refusal();
        if (refusal !== null) {
            this.#refuse(refusal);
            return;
        }
        this.#hello = frame;
        const { modelFingerprint, dModel, ranges, kernel } = holdings;
        const prints = { modelFingerprint, kernelFingerprint: kernel.fingerprint, kernel: kernel.name };
        this.#send(welcome({ ...prints, rowFormat: WireType.KX1, dModel, ranges, limits, name }));
        const pauseMs = this.#registry.pauseMs();
        if (pauseMs > 0) this.sayPause(pauseMs);
        this.#registry.connectionChanged(this);
    }

    /** @param {Refuse} refusal */
    #refuse(refusal) {
        this.#send(refusal);
        this.link.close(`refused: ${refusal.message}`);
    }

    /** @param {Dispatch} dispatch @param {Hello} hello */
    #accept(dispatch, hello) {
        const wrong = dispatchFault(dispatch, this.#service.holdings, hello.limits);
        if (wrong !== null) {
            this.#send(wrong);
            return;
        }
        this.#backlog.push(dispatch);
        this.#submitWhatFits();
    }

    /** Submit what the budget allows; the relay's credit bounds the rest. */
    #submitWhatFits() {
        const most = this.#service.limits.maxInflightBytes;
        while (this.#backlog.length > 0) {
            const [dispatch] = this.#backlog;
            const cost = dispatch.rows.length + answerBytes(dispatch);
            const underWay = this.#owedBytes + this.link.queuedBytes;
            if (underWay > 0 && underWay + cost > most) {
                this.#submitTogether();
                return;
            }
            this.#backlog.shift();
            this.#owedBytes += cost;
            this.#together.push({ client: this, dispatch, answer: (frame) => this.#answer(cost, frame) });
            if (!dispatch.hasMore) this.#submitTogether();
        }
    }

    /** Queue the jobs that waited for their last part. */
    #submitTogether() {
        for (const job of this.#together) this.#service.queue.submit(job);
        this.#together = [];
    }

    /** @param {number} cost @param {Frame} frame */
    #answer(cost, frame) {
        this.#owedBytes -= cost;
        this.#send(frame);
        this.bytesWentOut();
    }

    #forgetWork() {
        this.#backlog = [];
        this.#together = [];
        this.#service.queue.forget(this);
    }

    /** @param {Frame} frame */
    #send(frame) {
        if (!this.link.isClosing) this.link.send(frame, this.#hello?.limits ?? PROTOCOL_LIMITS);
    }
}
