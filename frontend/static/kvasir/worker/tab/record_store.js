/**
 * Small records that outlive the tab, in IndexedDB: who this worker is, what it holds, what the visitor agreed to.
 * `agent/state.js` keeps everything through it. Slices are not here but in files (`slices/paths.js`).
 */

import { StorageError } from "../../errors.js";

const STORE = "records";

export class RecordStore {
    /** @param {IDBDatabase} database */
    constructor(database) {
        this.database = database;
    }

    /**
     * Open it, or make it. Throws StorageError where the browser gives none.
     * @param {string} [name]
     * @returns {Promise<RecordStore>}
     */
    static async open(name = "kvasir-worker") {
        try {
            const asking = indexedDB.open(name, 1);
            asking.onupgradeneeded = () => asking.result.createObjectStore(STORE);
            const database = await answered(asking);
            database.onversionchange = () => database.close();
            return new RecordStore(database);
        } catch (error) {
            throw storageError(error);
        }
    }

    /** @param {string} key @returns {Promise<any>} undefined when it is not there */
    async get(key) {
        return this.attempt("readonly", (store) => store.get(key));
    }

    /** Durable once it resolves. @param {string} key @param {unknown} value */
    async put(key, value) {
        await this.attempt("readwrite", (store) => store.put(value, key));
    }

    /** Forget everything. */
    async clear() {
        await this.attempt("readwrite", (store) => store.clear());
    }

    /**
     * @template T
     * @param {IDBTransactionMode} mode
     * @param {(store: IDBObjectStore) => IDBRequest<T>} work
     * @returns {Promise<T>}
     */
    async attempt(mode, work) {
        try {
            const transaction = this.database.transaction(STORE, mode, { durability: "strict" });
            const done = ended(transaction);
            const asking = work(transaction.objectStore(STORE));
            await done;
            return asking.result;
        } catch (error) {
            throw storageError(error);
        }
    }
}

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
function answered(request) {
    return new Promise((resolve, reject) => {
        request.onsuccess = () => resolve(request.result);
        request.onerror = () => reject(request.error);
    });
}

/** @param {IDBTransaction} transaction @returns {Promise<void>} */
function ended(transaction) {
    return new Promise((resolve, reject) => {
        transaction.oncomplete = () => resolve();
        transaction.onabort = () => reject(transaction.error ?? new Error("the transaction was given up"));
    });
}

/** @param {unknown} error */
function storageError(error) {
    const words = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
    return new StorageError(`the browser does not keep this page's records: ${words}`, { cause: error });
}
