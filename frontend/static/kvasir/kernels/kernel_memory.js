/**
 * Keeps what was measured of this device's kernels in the browser's IndexedDB.
 *
 * Given to `chooseKernel` by the tab's worker. Losing it costs a measurement, nothing else: so no error leaves here.
 */

/** @import { KernelRecord, Remembered } from "./kernel_choice.js" */

const DATABASE = "kvasir-kernels";
const STORE = "records";
const KEY = "kx1 1"; // another version measures anew

/**
 * @param {IDBFactory} [factory]
 * @returns {Remembered}
 */
export function kernelMemory(factory = globalThis.indexedDB) {
    return {
        read: async () => {
            try {
                return (await transact(factory, "readonly", (store) => store.get(KEY))) ?? null;
            } catch {
                return null;
            }
        },
        write: async (record) => {
            try {
                await transact(factory, "readwrite", (store) => store.put(record, KEY));
            } catch {
                // private windows of some browsers keep nothing
            }
        },
    };
}

/**
 * @param {IDBFactory} factory
 * @param {IDBTransactionMode} mode
 * @param {(store: IDBObjectStore) => IDBRequest} act
 * @returns {Promise<KernelRecord | undefined>} what the request gave
 */
async function transact(factory, mode, act) {
    const database = await open(factory);
    try {
        return await settled(act(database.transaction(STORE, mode).objectStore(STORE)));
    } finally {
        database.close();
    }
}

/**
 * @param {IDBFactory} factory
 * @returns {Promise<IDBDatabase>}
 */
function open(factory) {
    const request = factory.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    return settled(request);
}

/**
 * @template T
 * @param {IDBRequest<T>} request
 * @returns {Promise<T>}
 */
function settled(request) {
    return new Promise((resolve, reject) => {
        request.onsuccess = () => resolve(request.result);
        request.onerror = () => reject(request.error);
    });
}
