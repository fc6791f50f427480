/**
 * The keys in this browser: the one that the visitor signed in with, and those of its own worker. Keys are sent only in
 * Authorization headers; there is no cookie and no server session.
 */

import { RecordStore } from "../worker/tab/record_store.js";

const FORM = /^kva-[0-9a-f]{16}-[A-Za-z0-9_-]{43}$/;

/**
 * @typedef {object} Keys
 * @property {string} signedIn the account's key that the visitor entered, or ""
 * @property {string} own the account's key of this browser's worker; "" if it has none
 * @property {string} nodeToken of this browser's worker; gives access to its node only
 * @property {string[]} former keys of accounts that this browser's worker worked for before
 */

/**
 * Return whether a text has the form of an account's key.
 * @param {string} text
 */
export function isAccountKey(text) {
    return FORM.test(text);
}

/** @returns {Promise<Keys>} all empty if the browser stores nothing */
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
        return { signedIn: "", own: "", nodeToken: "", former: [] }; // private windows: the sign-in lasts only as long as the page
    }
}

/**
 * Store an account's key.
 * @param {string} key "" signs out
 */
export async function keepKey(key) {
    try {
        const records = await RecordStore.open("kvasir-account");
        await records.put("accountKey", key);
        records.database.close();
    } catch {
        // the key still works on this page
    }
}

/**
 * Keep the worker's own key before it works for another account, so that its rewards are not lost.
 * @param {Keys} keys
 */
export async function keepOwnKey({ own, signedIn, former }) {
    if (!own || own === signedIn || former.includes(own)) return;
    const records = await RecordStore.open("kvasir-account");
    await records.put("formerKeys", [...former, own]);
    records.database.close();
}
