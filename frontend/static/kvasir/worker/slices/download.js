/**
 * Fetches a slice into its file, from the byte where the last attempt ended until it is complete. `slices/store.js`
 * calls it. After a cut, a timeout or a busy server it waits and tries again; only attempts that bring no byte count as
 * failed. It does not verify anything.
 */

import { DiskFullError, DownloadError, TransferError } from "../../errors.js";

/** @import { RangeSource } from "./http.js" */
/** @import { SliceManifest } from "./manifest.js" */
/** @import { DataFile } from "./paths.js" */

/** @typedef {(doneBytes: number, totalBytes: number) => void} Progress  bytes so far and in all */

const WRITE_BYTES = 1 << 20; // are gathered before they are written

/** Waits between failed attempts: they double, and are shortened at random so that workers do not retry together. */
export class Patience {
    /**
     * @param {{attempts?: number, firstS?: number, longestS?: number, pause?: typeof sleep, chance?: () => number}}
     *   [how]
     */
    constructor({ attempts = 8, firstS = 0.5, longestS = 30, pause = sleep, chance = Math.random } = {}) {
        this.attempts = attempts; // in a row without a byte
        this.firstS = firstS;
        this.longestS = longestS;
        this.pause = pause;
        this.chance = chance;
    }

    /**
     * Wait after the `nFailed`-th failure in a row.
     * @param {number} nFailed
     * @param {number} atLeastS
     * @param {AbortSignal} [signal]
     */
    async wait(nFailed, atLeastS, signal) {
        const longest = Math.min(this.longestS, this.firstS * 2 ** (nFailed - 1));
        await this.pause(Math.max(atLeastS, longest * (0.5 + 0.5 * this.chance())), signal);
    }
}

/** @param {number} seconds @param {AbortSignal} [signal] aborts the wait, with its reason */
export function sleep(seconds, signal) {
    return /** @type {Promise<void>} */ (
        new Promise((resolve, reject) => {
            signal?.throwIfAborted();
            const timer = setTimeout(() => {
                signal?.removeEventListener("abort", stop);
                resolve();
            }, 1000 * seconds);
            const stop = () => {
                clearTimeout(timer);
                reject(signal?.reason);
            };
            signal?.addEventListener("abort", stop, { once: true });
        })
    );
}

/** One slice. `run` may be aborted at any time; another one continues from there. */
export class SliceDownload {
    /**
     * @param {RangeSource} site
     * @param {string} url
     * @param {SliceManifest} layout
     * @param {DataFile} file
     * @param {Patience} patience
     */
    constructor(site, url, layout, file, patience) {
        this.site = site;
        this.url = url;
        this.layout = layout;
        this.file = file;
        this.patience = patience;
    }

    /**
     * Fetch the missing bytes. Throws SliceChangedError if the site's bytes have changed, DiskFullError, or
     * DownloadError after too many attempts in a row without a byte.
     * @param {Progress} progress @param {AbortSignal} [signal]
     */
    async run(progress, signal) {
        const { file, layout, patience } = this;
        await checkRoom(file.name, layout.nBytes - file.nBytes);
        progress(file.nBytes, layout.nBytes);
        let nFailed = 0;
        while (file.nBytes < layout.nBytes) {
            const before = file.nBytes;
            try {
                await this.fetchRest(progress, signal);
                return;
            } catch (error) {
                if (!(error instanceof TransferError)) throw error;
                nFailed = file.nBytes > before ? 1 : nFailed + 1;
                if (nFailed >= patience.attempts) {
                    const words = `${nFailed} attempts in a row brought nothing: ${error.message}`;
                    throw new DownloadError(words, { cause: error });
                }
                await patience.wait(nFailed, error.retryAfterS, signal);
            }
        }
    }

    /**
     * Append chunks as they arrive; those before an error are kept.
     * @param {Progress} progress
     * @param {AbortSignal} [signal]
     */
    async fetchRest(progress, signal) {
        const { file, layout } = this;
        const { nBytes, etag } = layout;
        const wanted = { url: this.url, start: file.nBytes, stop: nBytes, total: nBytes, etag };
        /** @type {Uint8Array[]} */
        let gathered = [];
        let nGathered = 0;
        const write = () => {
            for (const chunk of gathered) file.append(chunk);
            [gathered, nGathered] = [[], 0];
            progress(file.nBytes, layout.nBytes);
        };
        try {
            for await (const chunk of this.site.readRange(wanted, signal)) {
                gathered.push(chunk);
                nGathered += chunk.length;
                if (nGathered >= WRITE_BYTES) write();
            }
        } finally {
            write();
            file.flush();
        }
    }
}

/**
 * Throw DiskFullError if the browser's quota has fewer bytes free, before any is fetched.
 * @param {string} name
 * @param {number} nBytes
 */
async function checkRoom(name, nBytes) {
    const { quota, usage } = (await navigator.storage?.estimate?.()) ?? {};
    if (quota !== undefined && usage !== undefined && quota - usage < nBytes) {
        const words = `the rest of the slice needs ${nBytes} bytes, the browser gives ${quota - usage} more`;
        throw new DiskFullError(`${name}: ${words}`);
    }
}
