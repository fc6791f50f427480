/**
 * A contributing tab's state that survives reloads: identity, holdings, the visitor's consent and settings.
 * `tab_worker.js` loads it at the start; it is saved after every change. The node's token and the account's key are
 * kept here and never published.
 */

import { makePiece } from "./plan_state.js";

/** @import { Piece, SiteModel } from "./plan_state.js" */
/** @import { RecordStore } from "../tab/record_store.js" */

/**
 * @typedef {object} Identity Times are Unix seconds; 0: never.
 * @property {string} nodeId
 * @property {string} token
 * @property {string} accountId
 * @property {string} accountKey the key that a visitor writes down to keep the node's rewards
 * @property {number} sinceS when the token was issued
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
     * Read everything. Records of another version are ignored: the tab then starts from nothing.
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

    /** Change and store the identity; durable once it resolves. @param {Partial<Identity>} changes */
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

    /** Writes run one after another, so that the last one wins. */
    async save() {
        const write = async () => {
            const { identity, holding, settings, totalRowExperts } = this;
            await this.records.put("worker", { version: VERSION, identity, holding, settings, totalRowExperts });
        };
        const mine = this.writing.then(write, write);
        this.writing = mine.catch(() => undefined);
        await mine;
    }

    /** Delete everything, the identity included. */
    async forget() {
        await this.writing;
        await this.records.clear();
        [this.identity, this.holding, this.settings] = [STRANGER, NOTHING_HELD, NO_SETTINGS];
        this.totalRowExperts = 0;
    }
}

/**
 * Return the first pieces that fit a budget, all to be verified again.
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
 * Return the seconds from Unix time `nowS` until the token should be exchanged; Infinity if it never expires.
 * @param {Readonly<Identity>} identity
 * @param {number} nowS
 */
export function rotateInS({ sinceS, expiresS }, nowS) {
    return expiresS > 0 ? expiresS - TOKEN_SHARE_LEFT * (expiresS - sinceS) - nowS : Infinity;
}
