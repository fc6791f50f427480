/**
 * The keys of this browser: the one that the visitor signed in with, and those of its own worker. The rewards page and
 * the contributing tab ask. Keys go into an Authorization header and nowhere else; no cookie, no server session.
 */

import { RecordStore } from "../worker/tab/record_store.js";

const FORM = /^kva-[0-9a-f]{16}-[A-Za-z0-9_-]{43}$/;

/**
 * @typedef {object} Keys
 * @property {string} signedIn  the account's key that was entered; "" without one
 * @property {string} own  the account's key of this browser's worker; "" while it has none
 * @property {string} nodeToken  of this browser's worker; shows its node alone
 * @property {string[]} former  keys that this browser's worker had before it began to work for another account
 */

/**
 * Whether a text can be an account's key at all.
 * @param {string} text
 */
export function isAccountKey(text) {
    return FORM.test(text);
}

/** @returns {Promise<Keys>} all empty where the browser keeps nothing */
export async function loadKeys() {
    try {
        const [mine, workers] = await Promise.all([RecordStore.open("kvasir-account"), RecordStore.open()]);
        const asked = [mine.get("accountKey"), mine.get("formerKeys"), workers.get("worker")];
        const [signedIn, former, worker] = await Promise.all(asked);
        mine.database.close();
        workers.database.close();
        return {
            signedIn: typeof signedIn === "string" ? signedIn : "",
            own: worker?.identity?.accountKey ?? "",
            nodeToken: worker?.identity?.token ?? "",
            former: Array.isArray(former) ? former : [],
        };
    } catch {
        return { signedIn: "", own: "", nodeToken: "", former: [] }; // private windows: signing in then lasts as long as the page
    }
}

/**
 * Remember an account's key, or forget it.
 * @param {string} key  "" signs out
 */
export async function keepKey(key) {
    try {
        const records = await RecordStore.open("kvasir-account");
        await records.put("accountKey", key);
        records.database.close();
    } catch {
        // it still counts for this page
    }
}

/**
 * Before the worker begins to work for another account: what its own account earned must not be lost with the key.
 * @param {Keys} keys
 */
export async function keepOwnKey({ own, signedIn, former }) {
    if (!own || own === signedIn || former.includes(own)) return;
    const records = await RecordStore.open("kvasir-account");
    await records.put("formerKeys", [...former, own]);
    records.database.close();
}
