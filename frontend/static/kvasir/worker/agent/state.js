/**
 * What a contributing tab keeps over reloads: who it is, what it holds, what the visitor agreed to. Twin of
 * kvasir/worker/agent/state.py. `agent.js` and `tab_worker.js` load it at the start and save it after every change.
 * The node's token and the account's key lie here and are part of no published state.
 */

import { makePiece } from "./plan_state.js";

/** @import { Piece, SiteModel } from "./plan_state.js" */
/** @import { RecordStore } from "../tab/record_store.js" */

/**
 * @typedef {object} Identity  Moments are Unix seconds; 0: never.
 * @property {string} nodeId
 * @property {string} token
 * @property {string} accountId
 * @property {string} accountKey  what a visitor writes down to keep what the node earns
 * @property {number} sinceS  of the token
 * @property {number} expiresS
 */

/**
 * @typedef {object} Holding  What this node serves.
 * @property {string} relayUrl
 * @property {SiteModel | null} model
 * @property {readonly Readonly<Piece>[]} pieces
 * @property {Record<string, number>} rates  microcredits of one row-expert, by range text
 */

/** @typedef {import("../tab/messages.js").SavedSettings & {isPaused: boolean, invite: string}} Settings */

const VERSION = 1;
const TOKEN_SHARE_LEFT = 1 / 3; // of a token's life, when it is exchanged

/** @type {Readonly<Identity>} */
export const STRANGER = Object.freeze({ nodeId: "", token: "", accountId: "", accountKey: "", sinceS: 0, expiresS: 0 });
/** @type {Readonly<Holding>} */
export const NOTHING_HELD = Object.freeze({ relayUrl: "", model: null, pieces: [], rates: {} });
/** @type {Readonly<Settings>} */
export const NO_SETTINGS = Object.freeze({
    budgetBytes: 0,
    onlyOnPower: false,
    onlyUnmetered: false,
    region: "",
    isWanted: false,
    isPaused: false,
    invite: "",
});

/** The records of one worker. */
export class AgentMemory {
    /** @param {RecordStore} records */
    constructor(records) {
        this.records = records;
        /** @type {Readonly<Identity>} */
        this.identity = STRANGER;
        /** @type {Readonly<Holding>} */
        this.holding = NOTHING_HELD;
        /** @type {Readonly<Settings>} */
        this.settings = NO_SETTINGS;
        this.totalRowExperts = 0;
        /** @type {Promise<void>} */
        this.writing = Promise.resolve();
    }

    /**
     * Read everything. What another version wrote is passed over: the tab then begins anew.
     * @param {RecordStore} records
     */
    static async load(records) {
        const memory = new AgentMemory(records);
        const saved = await records.get("worker");
        if (saved?.version !== VERSION) return memory;
        memory.identity = { ...STRANGER, ...saved.identity };
        memory.holding = { ...NOTHING_HELD, ...saved.holding };
        memory.settings = { ...NO_SETTINGS, ...saved.settings };
        memory.totalRowExperts = saved.totalRowExperts;
        return memory;
    }

    /** Durable once it resolves. @param {Partial<Identity>} changes */
    async saveIdentity(changes) {
        this.identity = { ...this.identity, ...changes };
        await this.save();
    }

    /** @param {Partial<Holding>} changes */
    async saveHolding(changes) {
        this.holding = { ...this.holding, ...changes };
        await this.save();
    }

    /** @param {Partial<Settings>} changes */
    async saveSettings(changes) {
        this.settings = { ...this.settings, ...changes };
        await this.save();
    }

    /** Writes follow each other, so that the last one wins. */
    async save() {
        const write = async () => {
            const { identity, holding, settings, totalRowExperts } = this;
            await this.records.put("worker", { version: VERSION, identity, holding, settings, totalRowExperts });
        };
        const mine = this.writing.then(write, write);
        this.writing = mine.catch(() => undefined);
        await mine;
    }

    /** Delete everything: the next start is a stranger's. */
    async forget() {
        await this.writing;
        await this.records.clear();
        [this.identity, this.holding, this.settings] = [STRANGER, NOTHING_HELD, NO_SETTINGS];
        this.totalRowExperts = 0;
    }
}

/**
 * The pieces that a budget has room for, first come, first kept; all of them are to be looked at again.
 * @param {readonly Readonly<Piece>[]} pieces @param {number} roomBytes @returns {Readonly<Piece>[]}
 */
export function piecesWithin(pieces, roomBytes) {
    let left = roomBytes;
    const kept = [];
    for (const piece of pieces) {
        if (piece.nBytes > left) continue;
        left -= piece.nBytes;
        kept.push(makePiece(piece.range, piece.nBytes, { kernel: piece.kernel, leaseId: piece.leaseId }));
    }
    return kept;
}

/**
 * Seconds from Unix time `nowS` until the token should be exchanged; Infinity when it never ends.
 * @param {Readonly<Identity>} identity
 * @param {number} nowS
 */
export function rotateInS({ sinceS, expiresS }, nowS) {
    return expiresS > 0 ? expiresS - TOKEN_SHARE_LEFT * (expiresS - sinceS) - nowS : Infinity;
}
